"""Clients that leave in the middle of an upload: one line in the log, and no trace."""

import logging
import socket
from urllib.parse import urlsplit

import pytest

from tests.web.serving import Served, eventually

PATHS = ["/api/v1/tasks", "/api/v1/tasks/bulk", "/api/tasks", "/internal/engine/add", "/internal/workers/register"]
BODIES = {
    "announced": b"content-length: 1000\r\n\r\n" + b'{"task_type": ',
    "in chunks": b"transfer-encoding: chunked\r\n\r\nff\r\n" + b'{"task_type": ',
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", PATHS)
def test_an_upload_that_is_aborted_is_one_line_in_the_log(
    one_server: Served, caplog: pytest.LogCaptureFixture, path: str, body: str
):
    place = urlsplit(one_server.url)
    kind = "application/msgpack" if "engine" in path else "application/json"
    with caplog.at_level(logging.INFO):
        with socket.create_connection((place.hostname or "", place.port or 0)) as client:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
            client.sendall(head.encode() + BODIES[body])
        eventually(lambda: [each for each in caplog.records if path in each.getMessage()])
        assert one_server.client.get("/healthz").status_code == 200
    told = [record for record in caplog.records if record.name.startswith(("qo", "uvicorn.error"))]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("INFO", f"POST {path} aborted by the client")
    ]
    assert not told[0].exc_info
