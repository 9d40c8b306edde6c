"""`qo bucket-setup`, on a real server and without one."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from qo.audit import cli_user
from qo.buckets.address import BucketAddress, parse_address
from qo.buckets.setup import ROLES, Role, policy
from qo.cli import main
from qo.cli.store_setup import bucket_setup
from qo.client import connect
from qo.errors import InvalidSetting, StorageError
from tests.servers.process import S3Place, s3_client


def run(*arguments: str) -> Any:
    answer = CliRunner().invoke(bucket_setup, list(arguments), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def allowed(written: Any) -> set[str]:
    return {action for part in written["Statement"] if part["Effect"] == "Allow" for action in part["Action"]}


@pytest.mark.usefixtures("keys")
def test_a_bucket_is_set_up_once_and_rules_of_others_stay(ministack: S3Place) -> None:
    client = s3_client(ministack.endpoint)
    client.create_bucket(Bucket="fresh")
    theirs = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}
    client.put_bucket_lifecycle_configuration(Bucket="fresh", LifecycleConfiguration={"Rules": [theirs]})
    url = ministack.url("fresh", "team")
    options = (url, "--origin", "https://tasks.example.com", "--noncurrent-days", "7", "--json")

    planned = json.loads(run(*options, "--dry-run"))
    assert [step["already"] for step in planned["steps"]] == [False, False, False]
    assert client.get_bucket_versioning(Bucket="fresh").get("Status") is None

    done = json.loads(run(*options))
    assert [step["name"] for step in done["steps"]] == ["versioning", "lifecycle", "cors"]
    assert client.get_bucket_versioning(Bucket="fresh")["Status"] == "Enabled"
    rules = client.get_bucket_lifecycle_configuration(Bucket="fresh")["Rules"]
    assert [rule["ID"] for rule in rules] == ["theirs", "qo-team"]
    assert rules[1]["NoncurrentVersionExpiration"]["NoncurrentDays"] == 7
    (cors,) = client.get_bucket_cors(Bucket="fresh")["CORSRules"]
    assert cors["AllowedOrigins"] == ["https://tasks.example.com"]

    async def submit() -> None:
        async with connect(f"{url}&layout=log") as client:
            await client.enqueue("work")

    asyncio.run(submit())
    again = json.loads(run(*options))
    assert (done["layout"], again["layout"]) == (None, "log")
    assert [step["already"] for step in again["steps"]] == [True, True, True]

    audited = CliRunner().invoke(main, ["--url", url, "audit", "--json"])
    (record,) = json.loads(audited.stdout)["records"]  # neither the plan nor the repetition
    assert (record["action"], record["who"], record["outcome"]) == ("bucket-setup", cli_user(), "done")
    assert [part.partition(":")[0] for part in record["target"].split("; ")] == ["versioning", "lifecycle", "cors"]


@pytest.mark.usefixtures("keys")
def test_a_missing_bucket_is_a_clear_error(seaweed: S3Place) -> None:
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        run(seaweed.url("nowhere", ""))


@pytest.mark.parametrize("role", ROLES)
def test_a_policy_names_the_queue_and_nothing_beside_it(role: Role) -> None:
    written = json.loads(run("s3://tasks/team", "--print-policy", role))
    assert written == policy(parse_address("s3://tasks/team", {}), role)
    listing, objects, *rest = written["Statement"]
    denied = [part for part in rest if part["Effect"] == "Deny"]
    starts = listing["Condition"]["StringLike"]["s3:prefix"]
    assert [f"arn:aws:s3:::tasks/{start}" for start in starts] == objects["Resource"]
    assert all(start.startswith("team/") for start in starts)
    assert bool(denied) == (role != "admin")
    actions = {*listing["Action"], *objects["Action"]}
    assert not any("*" in action or "Policy" in action or "DeleteObjectVersion" in action for action in actions)


@pytest.mark.parametrize("layout", ["tasks", "one", "sqlite", "log"])
@pytest.mark.parametrize("role", ROLES)
def test_a_policy_fits_into_a_session_of_short_lived_credentials(role: Role, layout: str) -> None:
    address = parse_address(f"s3://{'b' * 63}/team/queue", {})
    assert len(json.dumps(policy(address, role, layout=layout), separators=(",", ":"))) < 2048


def test_a_dashboard_writes_nothing_and_a_producer_deletes_nothing() -> None:
    address = parse_address("s3://tasks", {})
    reading = allowed(policy(address, "dashboard"))
    submitting = allowed(policy(address, "producer"))
    assert not {"s3:PutObject", "s3:DeleteObject"} & reading
    assert "s3:DeleteObject" not in submitting


def test_where_all_share_one_object_a_producer_may_write_it() -> None:
    written = json.loads(run("s3://tasks/team?layout=one", "--print-policy", "producer"))
    resources = written["Statement"][1]["Resource"]
    assert resources == [f"arn:aws:s3:::tasks/team/{start}*" for start in ("queue.json", "data/")]


def test_in_a_log_a_producer_may_only_submit() -> None:
    written = json.loads(run("s3://tasks/team?layout=log", "--print-policy", "producer"))
    allowed_resources = {
        (action, resource.removeprefix("arn:aws:s3:::tasks/team/"))
        for part in written["Statement"][1:]
        if part["Effect"] == "Allow"
        for action in part["Action"]
        for resource in ([part["Resource"]] if isinstance(part["Resource"], str) else part["Resource"])
    }
    assert allowed_resources == {
        ("s3:GetObject", "log/meta.json"),
        ("s3:GetObject", "log/*/submissions/*"),
        ("s3:PutObject", "log/*/submissions/*"),
        ("s3:PutObject", "data/*"),
        ("s3:PutObject", "audit/*"),
    }
    listed = written["Statement"][0]["Condition"]["StringLike"]["s3:prefix"]
    assert listed == ["team/log/meta.json"]


@pytest.mark.parametrize("prefix", ["team*", "te?m", "${aws:username}"])
def test_a_prefix_that_a_policy_takes_for_a_pattern_is_refused(prefix: str) -> None:
    """`team*` would name the queues of all teams."""
    with pytest.raises(InvalidSetting, match="pattern"):
        policy(BucketAddress(scheme="s3", bucket="tasks", prefix=prefix), "producer")


@pytest.mark.parametrize("origin", ["*", "https://*.example.com", "https://example.com/page", "example.com"])
def test_an_invalid_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidSetting, match="is not an origin"):
        run("s3://tasks", "--origin", origin)


@pytest.mark.parametrize("url", ["gs://tasks", "file:///tmp/x", "sqlite:///x.db"])
def test_other_stores_get_instructions(url: str) -> None:
    with pytest.raises(InvalidSetting, match="is not an s3:// bucket"):
        run(url)
