"""`qo dashboard`: what it publishes, what its links hold, and what it says where it cannot work."""

import json
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from qo.audit import cli_user
from qo.buckets.address import parse_address
from qo.buckets.setup import policy
from qo.cli import main
from qo.web.static_site.credentials import ending, signing_key
from qo.web.static_site.publisher import SOURCE, page_url, store_url
from tests.dashboard.zero_store import READER, Place, Store
from tests.servers.process import KEYS, s3_client

pytestmark = pytest.mark.usefixtures("_keys")


@pytest.fixture
def place(store: Store) -> Place:
    return store.empty_place()


def fetch(url: str) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers, b""


def opened(link: str) -> tuple[str, dict[str, Any]]:
    page, _, fragment = link.partition("#")
    return page, json.loads(urlsafe_b64decode(fragment))


def refusal(*args: str) -> str:
    result = CliRunner().invoke(main, [*args, "--json"], env={**KEYS})
    assert result.exit_code != 0, result.output
    error: str = json.loads(result.stderr)["error"]
    return error


def test_publishing_puts_every_file_with_its_type_and_lets_browsers_in(place: Place) -> None:
    first = place.qo("publish")
    assert first["public"] is False  # nobody asked for it
    done = place.qo("publish", "--public")
    assert done["public"] is True
    assert {file["outcome"] for file in first["files"]} == {"written"}
    assert {file["outcome"] for file in done["files"]} == {"same"}
    names = {file["key"].removeprefix(f"{place.prefix}/ui/") for file in first["files"]}
    source = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.*") if path.suffix != ".md"}
    assert names == source | {"config.json"} and "sources/bucket.js" in names
    for name, kind in (("index.html", "text/html"), ("main.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        status, headers, _ = fetch(f"{done['page']}{name}")
        assert (status, headers["Cache-Control"]) == (200, "no-cache")
        assert headers["Content-Type"].startswith(kind)


def test_only_the_page_is_let_out(place: Place) -> None:
    place.put("queue.json", {"secret": True})
    neighbour = place._replace(prefix=f"{place.prefix}-beside")
    place.qo("publish", "--public")
    neighbour.qo("publish", "--public")
    for each in (place, neighbour):  # the second did not shut the first out
        assert fetch(f"{each.endpoint}/{each.bucket}/{each.prefix}/ui/index.html")[0] == 200
    assert fetch(f"{place.endpoint}/{place.bucket}/{place.prefix}/queue.json")[0] == 403
    assert fetch(f"{place.endpoint}/{place.bucket}?list-type=2")[0] == 403


def test_a_policy_of_another_application_stays(store: Store) -> None:
    client = s3_client(store.endpoint)
    client.create_bucket(Bucket="shared")
    theirs = {
        "Sid": "Theirs",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::shared/open/*",
    }
    client.put_bucket_policy(Bucket="shared", Policy=json.dumps({"Version": "2012-10-17", "Statement": [theirs]}))
    store.empty_place("shared").qo("publish", "--public")
    statements = json.loads(client.get_bucket_policy(Bucket="shared")["Policy"])["Statement"]
    assert [each["Sid"] for each in statements] == ["Theirs", "QoDashboardPage"]


def test_the_page_can_only_send_requests_to_its_store(place: Place) -> None:
    page = place.qo("publish", "--public")["page"]
    index = fetch(f"{page}index.html")[2].decode()
    (policy,) = [line for line in index.splitlines() if "Content-Security-Policy" in line]
    assert f"connect-src {page}config.json {place.endpoint}/{place.bucket}/;" in policy
    assert f"script-src {page};" in policy and "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy and "*" not in policy
    assert index.index("charset") < index.index("Content-Security-Policy") < index.index("<script")
    assert 'modulepreload" href="sources/bucket.js"' in index and "sources/api.js" not in index
    config = json.loads(fetch(f"{page}config.json")[2])
    assert (config["source"], config["bucket"], config["layout"]) == ("bucket", place.bucket, "tasks")
    assert "secret" not in json.dumps(config)


def test_a_dry_run_writes_nothing_and_old_files_go(place: Place) -> None:
    planned = place.qo("publish", "--dry-run")
    assert {file["outcome"] for file in planned["files"]} == {"written"} and place.objects() == set()
    place.qo("publish")
    old = {"source": "bucket", "files": ["old.js", "../tasks/0/x.json"]}
    place.put("ui/config.json", old)
    place.put("ui/old.js", b"")
    place.put("tasks/0/x.json", b"")
    outcomes = {file["key"].rpartition("/ui/")[2]: file["outcome"] for file in place.qo("publish")["files"]}
    changed = {name: outcome for name, outcome in outcomes.items() if outcome != "same"}
    assert changed == {"old.js": "removed", "config.json": "written"}
    assert "ui/old.js" not in place.objects() and "tasks/0/x.json" in place.objects()


def test_a_link_holds_the_days_keys_and_not_the_secret(place: Place) -> None:
    place.qo("publish")
    before = time.time()
    answer = place.qo("link", "--expires", "2h", "--own-credentials")
    page, said = opened(answer["link"])
    assert page == f"{place.endpoint}/{place.bucket}/{place.prefix}/ui/index.html"
    assert (said["k"], said["r"], said["b"]) == (KEYS["AWS_ACCESS_KEY_ID"], "us-east-1", place.bucket)
    assert (said["u"], said["p"], said["l"]) == (place.endpoint, place.prefix, "tasks")
    assert "w" not in said and before + 7190 < said["e"] < time.time() + 7210
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    assert said["d"] == {date: signing_key(secret, date, "us-east-1") for date in said["d"]}
    assert 1 <= len(said["d"]) <= 2
    assert secret not in json.dumps(said)
    assert (answer["credentials"], answer["write"]) == ("own", False)
    assert any("(UTC)" in remark for remark in answer["remarks"])
    assert any("--print-policy dashboard" in remark for remark in answer["remarks"])


def test_publishing_a_page_and_creating_a_link_are_in_the_audit_trail(place: Place) -> None:
    place.qo("publish", "--dry-run")
    place.qo("publish")
    place.qo("publish")  # changes nothing
    place.qo("link", "--own-credentials")
    place.qo("link", "--write", "--sts-endpoint", place.endpoint, "--expires", "2h")
    answer = CliRunner().invoke(main, ["--url", place.url, "audit", "--json"], env={**KEYS})
    records = json.loads(answer.stdout)["records"][::-1]
    assert [each["action"] for each in records] == ["dashboard.publish", "dashboard.link", "dashboard.link"]
    assert {(each["actor"], each["who"], each["verified"]) for each in records} == {("cli", cli_user(), True)}
    published, own, narrow = (each["target"] for each in records)
    assert published == page_url(parse_address(place.url))
    assert own.startswith(f"read, own credentials {KEYS['AWS_ACCESS_KEY_ID']}, until ")
    assert narrow.startswith("read and write, federated credentials ")  # with the key by which the page records itself


def test_a_link_of_many_hours_works_across_midnight(place: Place) -> None:
    said = opened(place.link("--page", "https://tasks.example.com/ui", "--expires", "36h"))[1]
    assert len(said["d"]) in (2, 3)


def test_where_tokens_are_given_out_a_link_is_narrow_and_ends_by_itself(place: Place) -> None:
    answer = place.qo("link", "--page", "https://tasks.example.com/ui/", "--write", "--sts-endpoint", place.endpoint)
    page, said = opened(answer["link"])
    assert page == "https://tasks.example.com/ui/index.html"
    assert answer["credentials"] == "federated" and answer["remarks"] == [] and said["w"] is True
    assert said["t"] and said["k"] != KEYS["AWS_ACCESS_KEY_ID"]


def test_credentials_that_are_short_lived_already_are_used_as_they_are(place: Place) -> None:
    temporary = {"AWS_ACCESS_KEY_ID": "ASIA1", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "token"}
    said = opened(place.link("--page", "https://tasks.example.com/", keys=temporary))[1]
    assert (said["k"], said["t"]) == ("ASIA1", "token")


def test_people_get_the_address_alone_on_stdout(place: Place) -> None:
    asked = ["dashboard", "link", place.url, "--page", "https://a.example/ui", "--own-credentials"]
    result = CliRunner().invoke(main, asked, env={**KEYS})
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("https://a.example/ui/index.html#") and result.stdout.count("\n") == 1
    assert "treat it like a password" in result.stderr and "note: " in result.stderr
    assert "history" in result.stderr
    pasted = CliRunner().invoke(main, [*asked, "--paste"], env={**KEYS})
    page, code = pasted.stdout.splitlines()
    assert page == "https://a.example/ui/index.html" and opened(f"{page}#{code}")[1]["b"] == place.bucket
    assert "history" not in pasted.stderr


def test_ones_own_credentials_go_into_a_link_only_when_that_is_asked_for(place: Place) -> None:
    asked = ("link", "--page", "https://a.example/")
    for keys in ({}, {"AWS_SESSION_TOKEN": "token"}):
        assert "--own-credentials" in place.qo(*asked, code=2, keys=keys)["error"]
        assert place.qo(*asked, "--own-credentials", keys=keys)["credentials"] == "own"
    both = ("--own-credentials", "--role", "arn:aws:iam::123456789012:role/ops")
    assert "--role and --own-credentials" in place.qo(*asked, *both, code=2)["error"]


def test_a_link_shorter_than_the_shortest_session_expires_on_time(place: Place) -> None:
    """The store itself refuses then: a session of a quarter of an hour is under a policy that ends before."""
    narrow = policy(parse_address("s3://tasks", {}), "dashboard")
    *same, over = ending(narrow, 1_700_000_000.0)["Statement"]
    assert same == narrow["Statement"] and over["Effect"] == "Deny" and over["Resource"] == "*"
    assert over["Condition"] == {"DateGreaterThan": {"aws:CurrentTime": "2023-11-14T22:13:20Z"}}
    before = time.time()
    answer = place.qo("link", "--page", "https://a.example/", "--sts-endpoint", place.endpoint, "--expires", "1m")
    assert answer["credentials"] == "federated"
    assert before + 50 < opened(answer["link"])[1]["e"] < time.time() + 70


def test_what_was_never_published_cannot_be_linked_to(place: Place) -> None:
    assert "run: qo dashboard publish" in refusal("dashboard", "link", place.url)


@pytest.mark.parametrize(
    "url", ["gs://tasks/team", "az://tasks", "file:///tmp/tasks", "sqlite:///qo.db", "redis://localhost"]
)
@pytest.mark.parametrize("command", ["publish", "link"])
def test_stores_a_page_cannot_read_say_what_to_do_instead(command: str, url: str) -> None:
    assert "qo serve" in refusal("dashboard", command, url)


def test_other_mistakes_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "qo serve" in refusal("dashboard", "link", "s3://tasks?layout=sqlite")
    assert "between 1m and 36h" in refusal("dashboard", "link", place.url, "--expires", "3d")
    assert "is not a URL" in refusal("dashboard", "publish", place.url, "--page", "tasks.example.com")
    assert "no credentials for a link" in refusal("dashboard", "link", f"{place.url}&anonymous=true")
    missing = place._replace(bucket="nowhere")
    assert "there is no bucket 'nowhere'" in missing.qo("publish", code=5)["error"]
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it remembers who called first in this process
    assert "do not allow publishing" in place.qo("publish", code=5, keys=READER)["error"]
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    role = ("--role", "arn:aws:iam::123456789012:role/ops", "--sts-endpoint", place.endpoint)
    assert "cannot be assumed" in place.qo("link", "--page", "https://a.example/", *role, code=5)["error"]
    nobody = ("--sts-endpoint", "http://127.0.0.1:9")
    assert "does not issue tokens" in place.qo("link", "--page", "https://a.example/", *nobody, code=5)["error"]


@pytest.mark.parametrize(
    ("url", "store_at"),
    [
        ("s3://tasks/team?region=eu-west-3", "https://tasks.s3.eu-west-3.amazonaws.com/"),
        ("s3://my.tasks?region=eu-west-3", "https://s3.eu-west-3.amazonaws.com/my.tasks/"),
        ("s3://tasks?endpoint=http://localhost:9000/", "http://localhost:9000/tasks/"),
    ],
)
def test_the_page_lies_where_the_store_serves_it(url: str, store_at: str) -> None:
    address = parse_address(url, {})
    assert store_url(address) == store_at
    assert page_url(address) == f"{store_at}{address.prefix + '/' if address.prefix else ''}ui/"


def test_the_pages_files_are_in_the_package() -> None:
    assert Path(SOURCE, "index.html").is_file() and Path(SOURCE, "sources", "bucket.js").is_file()
