"""HTTP by hand, for what clients do not let one say."""

import contextlib
import socket
from typing import NamedTuple

from tests.web.serving import Served

TIMEOUT = 20.0  # seconds


class RawAnswer(NamedTuple):
    status: int  # 0: the connection was closed without an answer
    text: str


def connect(api: Served) -> socket.socket:
    url = api.client.base_url
    return socket.create_connection((url.host, url.port), timeout=TIMEOUT)


def head(api: Served, method: str = "GET", path: str = "/healthz", *more: str) -> bytes:
    """A request line and headers without the empty line that ends them."""
    lines = (f"{method} {path} HTTP/1.1", f"Host: {api.client.base_url.netloc.decode()}", *more)
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def answer(connection: socket.socket) -> RawAnswer:
    """What the server says until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return RawAnswer(int(data.split(b" ", 2)[1]) if data else 0, data.decode("latin-1"))


def say(api: Served, data: bytes) -> RawAnswer:
    with connect(api) as connection:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
        return answer(connection)
