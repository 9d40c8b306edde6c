"""What one client may cost the server."""

import contextlib
import logging
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from qo.cli.run_server import limits_of, within_descriptors
from qo.cli.serve import command as serve_command
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting
from qo.web import WebSettings
from qo.web.http.settings import ServerLimits
from tests.conditions import wait_until
from tests.web.raw_http import TIMEOUT, RawAnswer, answer, connect, head, say
from tests.web.serving import Served, served

LIMITS = ServerLimits(
    max_connections=4,
    header_timeout=0.4,
    idle_timeout=0.4,
    request_timeout=0.6,
    max_upload_memory=256 * 1024,
    max_unsent_memory=256 * 1024,
)
NO_BODY_YET = ("Content-Type: application/json", "Content-Length: 200000")


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served(MemoryEngine(), WebSettings(limits=LIMITS)) as made:
        yield made


def is_served(api: Served) -> bool:
    return say(api, head(api, "GET", "/healthz", "Connection: close") + b"\r\n").status == 200


def test_a_head_larger_than_the_limit_is_431(one_server: Served):
    fits = "X-Long: " + "x" * 30_000
    assert say(one_server, head(one_server, "GET", "/healthz", fits, "Connection: close") + b"\r\n").status == 200
    for more in ("x" * 33_000, "x" * 300_000):
        complete = head(one_server, "GET", "/healthz", f"X-Long: {more}") + b"\r\n"
        assert say(one_server, complete).status == 431
        assert say(one_server, complete[:-4]).status == 431, "the end of the head is not waited for"
    assert say(one_server, head(one_server, "GET", "/healthz?" + "x" * 40_000) + b"\r\n").status == 431


def test_more_headers_than_the_limit_are_431(one_server: Served):
    refused = say(one_server, head(one_server, "GET", "/healthz", *[f"X-{n}: y" for n in range(200)]) + b"\r\n")
    assert refused.status == 431 and '"code":"too_large"' in refused.text and "connection: close" in refused.text


def test_a_head_without_end_is_not_collected(one_server: Served):
    """31 MB of them used to cost 283 MB."""
    with connect(one_server) as connection:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(head(one_server))
            for _ in range(500):
                connection.sendall(b"X-More: " + b"x" * 60_000 + b"\r\n")
        assert answer(connection).status in (0, 431)


def test_bytes_that_are_no_http_are_400(one_server: Served):
    refused = say(one_server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
    assert refused.status == 400 and '"code":"invalid"' in refused.text


def test_many_requests_before_the_first_answer_are_refused(one_server: Served):
    one = head(one_server) + b"\r\n"
    last = head(one_server, "GET", "/healthz", "Connection: close") + b"\r\n"
    assert say(one_server, one * 10 + last).text.count("HTTP/1.1 200") == 11
    assert say(one_server, one * 5000).text.count("HTTP/1.1 200") <= 16


def test_a_client_that_leaves_while_it_is_answered_leaves_no_trace(
    one_server: Served, caplog: pytest.LogCaptureFixture
):
    task_id = one_server.post("/api/v1/tasks", {"task_type": "never"}).json()["task_id"]
    wait = head(one_server, "GET", f"/api/v1/tasks/{task_id}/result?wait=0.2") + b"\r\n"
    with caplog.at_level(logging.INFO):
        with connect(one_server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            connection.sendall(wait + head(one_server) + b"\r\n")
        wait_until(lambda: [each for each in caplog.records if "result" in str(vars(each).get("path", ""))])
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_silent_client_is_disconnected(api: Served):
    with connect(api) as connection:
        assert answer(connection) == RawAnswer(0, "")


def test_blank_lines_are_no_request(api: Served):
    with connect(api) as connection:
        connection.sendall(b"\r\n\r\n")
        assert answer(connection) == RawAnswer(0, "")


def test_headers_that_take_too_long_are_408(api: Served):
    assert say(api, head(api)).status == 408
    with connect(api) as connection:  # and on a connection that was used before
        connection.sendall(head(api) + b"\r\n" + head(api))
        said = answer(connection).text
        assert said.startswith("HTTP/1.1 200") and "HTTP/1.1 408" in said


def test_a_connection_without_a_next_request_is_closed(api: Served):
    said = say(api, head(api) + b"\r\n").text
    assert said.startswith("HTTP/1.1 200") and "connection: close" not in said


def test_a_body_that_takes_too_long_is_408(api: Served):
    refused = say(api, head(api, "POST", "/api/v1/tasks", *NO_BODY_YET) + b'\r\n{"task_type": ')
    assert refused.status == 408 and '"code":"timeout"' in refused.text
    assert is_served(api)


def test_a_request_that_takes_too_long_is_503(api: Served):
    task_id = api.post("/api/v1/tasks", {"task_type": "never"}).json()["task_id"]
    waited = say(api, head(api, "GET", f"/api/v1/tasks/{task_id}/result?wait=30", "Connection: close") + b"\r\n")
    assert waited.status == 503 and "its changes may have been made" in waited.text and "retry-after: 1" in waited.text
    assert is_served(api)


def test_an_event_stream_outlives_the_time_of_a_request(api: Served):
    with api.client.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        for number in range(2):  # each is told a second after the one before
            api.post("/api/v1/tasks", {"task_type": f"seen-{number}"})
            assert any(f"seen-{number}" in line for line in lines)


def test_silent_clients_make_room_for_one_that_asks(api: Served):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(api)) for _ in range(10 * LIMITS.max_connections)]
        assert is_served(api)
        assert all(answer(each).status == 0 for each in silent)


def test_requests_that_are_being_answered_are_not_closed_for_others():
    limits = ServerLimits(max_connections=2)
    with served(MemoryEngine(), WebSettings(limits=limits)) as api, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(api.client.stream("GET", "/api/v1/events")) for _ in range(2)]
        lines = [stream.iter_lines() for stream in streams]
        assert [next(each) for each in lines] == ["retry: 2000"] * 2
        refused = say(api, head(api) + b"\r\n")
        assert refused.status == 503 and "retry-after: 1" in refused.text
        api.run(api.qo_client.enqueue("seen"))
        assert all(any("seen" in line for line in each) for each in lines)


def test_unfinished_uploads_make_room_for_one_that_is_quick(api: Served):
    slow = head(api, "POST", "/api/v1/tasks", *NO_BODY_YET) + b"\r\n" + b" " * 120_000
    with connect(api) as first, connect(api) as second:
        first.sendall(slow)
        second.sendall(slow)
        body = b'{"task_type": "quick"}'.ljust(200_000)
        quick = head(api, "POST", "/api/v1/tasks", *NO_BODY_YET, "Connection: close") + b"\r\n" + body
        assert say(api, quick).status == 201
        assert answer(first).status == 408


def test_a_client_that_does_not_read_its_answer_is_cut_off(api: Served):
    """The kernel takes some megabytes off the server's hands; the client asks for far more."""
    for _ in range(20):
        api.run(api.qo_client.enqueue("large", {"text": "x" * 50_000}))
    ask = head(api, "GET", "/api/v1/tasks?type=large&limit=20") + b"\r\n"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(TIMEOUT)
        reader.connect((api.client.base_url.host, api.client.base_url.port))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            wait_until(lambda: reader.sendall(ask))  # each answer is larger than what the server keeps for slow readers
    assert is_served(api)


def test_the_options_of_the_command_line_have_the_same_defaults():
    given = serve_command.make_context("serve", []).params
    assert limits_of(given) == ServerLimits()


def test_connections_leave_descriptors_for_the_store():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert within_descriptors(ServerLimits(max_connections=soft)).max_connections <= hard - 128
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, soft + 128)
        assert within_descriptors(ServerLimits(max_connections=10)).max_connections == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limits_are_positive():
    with pytest.raises(InvalidSetting):
        ServerLimits(max_connections=0)


def test_a_refused_connection_leaves_one_line(one_server: Served, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "qo.web"):
        say(one_server, head(one_server, "GET", "/healthz?" + "x" * 40_000) + b"\r\n")
    assert len([each for each in caplog.records if vars(each).get("http_status") == 431]) == 1
