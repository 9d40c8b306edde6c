"""Clients that a server must bear: `python hostile_clients.py PORT CONNECTIONS SECONDS`. Standard library only.

Each connection does one hostile thing, and comes again when the server has closed it.
"""

import asyncio
import contextlib
import os
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from itertools import cycle, islice

PAUSE = 0.5  # seconds between two bytes of a slow client, and before a closed one comes again
JSON = b"Content-Type: application/json\r\n"
HEAD = b"Host: localhost\r\n"


async def silent(reader: StreamReader, _writer: StreamWriter) -> None:
    await reader.read()


async def slow_head(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\n" + HEAD + b"X-Slow: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(PAUSE)


async def huge_head(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\n" + HEAD)
    for number in range(500):
        writer.write(b"X-%d: %b\r\n" % (number, b"x" * 62_000))
        await writer.drain()


async def many_headers(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\n" + HEAD + b"a:b\r\n" * 50_000)
    await reader.read()


async def stalled_body(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"POST /api/v1/tasks HTTP/1.1\r\n" + HEAD + JSON + b"Content-Length: 1000000\r\n\r\n" + b" " * 999_000)
    await reader.read()


async def stalled_engine_call(reader: StreamReader, writer: StreamWriter) -> None:
    head = b"Content-Type: application/msgpack\r\nContent-Length: 8000000\r\n\r\n"
    writer.write(b"POST /internal/engine/add HTTP/1.1\r\n" + HEAD + head)
    for _ in range(79):
        writer.write(b" " * 100_000)
        await writer.drain()
    await reader.read()


async def endless_body(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"POST /api/v1/tasks HTTP/1.1\r\n" + HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"f000\r\n" + b" " * 0xF000 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(PAUSE / 10)


async def large_body(reader: StreamReader, writer: StreamWriter) -> None:
    body = b'{"task_type": "t", "parameters": [%b[]]}' % (b"[]," * 330_000)
    writer.write(b"POST /api/v1/tasks HTTP/1.1\r\n" + HEAD + JSON + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await reader.readline()
    await asyncio.sleep(20 * PAUSE)


async def slow_reader(_reader: StreamReader, writer: StreamWriter) -> None:
    for _ in range(10):
        writer.write(b"GET /api/v1/tasks?type=large&limit=20 HTTP/1.1\r\n" + HEAD + b"\r\n")
    await asyncio.sleep(3600)


async def pipeliner(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write((b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\n") * 5000)
    await reader.read()


async def no_http(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"\x16\x03\x01" + os.urandom(500))
    await reader.read()


async def idle(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\n")
    await reader.read()


KINDS = (
    silent,
    slow_head,
    huge_head,
    stalled_body,
    slow_reader,
    silent,
    many_headers,
    stalled_engine_call,
    endless_body,
    pipeliner,
    no_http,
    idle,
)
LARGE_BODIES = 4  # honest ones may be as large, so they are requests like any other, and few


async def attack(port: int, kind: Callable[[StreamReader, StreamWriter], Awaitable[None]]) -> None:
    limit = 4096 if kind is slow_reader else 65536
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
            try:
                await kind(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(PAUSE)


async def main(port: int, connections: int, seconds: float) -> None:
    kinds = [*[large_body] * min(LARGE_BODIES, connections), *islice(cycle(KINDS), max(0, connections - LARGE_BODIES))]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*[attack(port, kind) for kind in kinds])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
