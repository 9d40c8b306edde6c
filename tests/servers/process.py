"""Servers for tests: started on loopback, ended with the session. A missing one skips at a desk and fails in CI."""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from tests.conditions import wait_until

ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "qo-test-key", "AWS_SECRET_ACCESS_KEY": "qo-test-secret"}
TIMEOUT = 60.0  # seconds until a server must answer


class S3Place(NamedTuple):
    """A running S3 with two buckets: `plain`, and `versioned`."""

    endpoint: str

    def url(self, bucket: str, prefix: str) -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"


def missing(what: str, how: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: {how}")
    pytest.skip(f"{what} is missing: {how}")


def find(program: str, variable: str, *places: Path) -> str | None:
    """A program named by a variable, beside this Python, in a place of its own, or on the path."""
    beside = Path(sys.executable).parent / program
    found = [os.environ.get(variable), *(str(place) for place in (beside, *places) if place.exists())]
    return next((path for path in found if path), None) or shutil.which(program)


def _own_ports() -> Iterator[int]:
    """Ports that the system gives to nobody by itself, a part of them for each process of pytest.

    A port of the system's own range may be taken before its server has started, or while the server is restarted: by
    the server of another test, or by any client.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = _FIRST_PORT + int(worker) % _PARTS * _PORTS_OF_PART
    ports = range(first, first + _PORTS_OF_PART)
    return itertools.cycle([*ports[os.getpid() % _PORTS_OF_PART :], *ports])


_FIRST_PORT, _PARTS, _PORTS_OF_PART = 12_000, 20, 1_000  # Linux gives away the ports from 32,768 on
_ports = _own_ports()


def free_port() -> int:
    return next(port for port in _ports if _is_free(port))


def free_ports(number: int) -> list[int]:
    return [free_port() for _ in range(number)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def running(
    command: Sequence[str], folder: Path, ready: str, environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A server, from its first answer to `ready` until the end."""
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
    try:

        def is_ready() -> bool:
            if server.poll() is not None:
                pytest.fail(f"{command[0]} does not start:\n{log.read_text(errors='replace')[-3000:]}")
            return _answers(ready)

        wait_until(is_ready)
        yield
    finally:
        # Its data is of no use any more, and some take seconds to say goodbye. It may have children.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def make_buckets(endpoint: str) -> None:
    client = s3_client(endpoint)

    def are_made() -> bool:
        try:
            for name in ("plain", "versioned"):
                client.create_bucket(Bucket=name)
        except client.exceptions.ClientError as error:  # a server may answer before it can store
            return "BucketAlready" in str(error)
        return True

    wait_until(are_made)
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})


def s3_client(endpoint: str) -> Any:
    import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import
    from botocore.config import Config  # type: ignore[import-untyped]  # noqa: PLC0415

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return True
    except OSError:
        return False
