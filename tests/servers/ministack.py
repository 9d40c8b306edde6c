"""MiniStack: a second S3, with fast races in versioned buckets. In an environment of its own: it pins what we use."""

from collections.abc import Iterator

import pytest

from tests.servers.process import ROOT, S3Place, find, free_ports, make_buckets, missing, running


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    program = find("ministack", "QO_TEST_MINISTACK", ROOT / ".venv-ministack" / "bin" / "ministack")
    if program is None:
        missing("MiniStack", "python -m venv .venv-ministack && .venv-ministack/bin/pip install ministack")
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    environ = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "LOG_LEVEL": "ERROR"}
    with running([program], tmp_path_factory.mktemp("ministack"), endpoint, environ):
        make_buckets(endpoint)
        yield S3Place(endpoint)
