"""Submits a second by HTTP against SQLite and one server process. `python -m bench.http_submits [SECONDS]`

Prints one line each for single submits (many connections) and bulk submits, next to the same without HTTP.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import qo
from qo.codec import encode_value

CONNECTIONS = 128
MAX_SUBMIT_SIZE = 1000
ONE = json.dumps({"task_type": "load", "priority": "high", "parameters": {"to": "ada@example.com", "n": 1}}).encode()
MANY = b'{"tasks": [%s]}' % b", ".join([ONE] * MAX_SUBMIT_SIZE)


def request(path: str, body: bytes, *, method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def caller(port: int, message: bytes, until: float) -> int:
    """One connection, one request after the other, with as little client as can be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done = 0
    while time.monotonic() < until:
        writer.write(message)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        done += 1
    writer.close()
    return done


async def measure_calls(port: int, message: bytes, connections: int, seconds: float) -> tuple[int, float]:
    """The number of requests, and the seconds they took."""
    began = time.monotonic()
    callers = [caller(port, message, began + seconds) for _ in range(connections)]
    done = sum(await asyncio.gather(*callers))
    return done, time.monotonic() - began


async def measure(port: int, path: str, body: bytes, connections: int, seconds: float) -> float:
    done, took = await measure_calls(port, request(path, body), connections, seconds)
    return done / took


async def in_process(url: str, seconds: float) -> tuple[float, float]:
    async with qo.connect(url) as client:

        async def submitter(until: float) -> int:
            done = 0
            while time.monotonic() < until:
                await client.enqueue("load", {"to": "ada@example.com", "n": 1})
                done += 1
            return done

        began = time.monotonic()
        singles = sum(await asyncio.gather(*[submitter(began + seconds) for _ in range(CONNECTIONS)]))
        single_rate = singles / (time.monotonic() - began)
        began, many = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            payload = encode_value({"to": "ada@example.com", "n": 1})
            many += len(await client.submit_many([client.new_task("load", payload) for _ in range(MAX_SUBMIT_SIZE)]))
        return single_rate, many / (time.monotonic() - began)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'load.db'}"
        words = [sys.executable, "-m", "qo", "serve", "--url", url, "--port", "0", "--no-monitor", "--log-json"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            port = next(json.loads(line)["port"] for line in server.stderr if '"port"' in line)
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
            try:
                single = asyncio.run(measure(port, "/api/v1/tasks", ONE, CONNECTIONS, seconds))
                bulk = MAX_SUBMIT_SIZE * asyncio.run(measure(port, "/api/v1/tasks/bulk", MANY, 2, seconds))
            finally:
                server.terminate()
        raw_single, raw_bulk = asyncio.run(in_process(f"sqlite:///{Path(folder) / 'raw.db'}", seconds))
    print(
        f"single: {single:,.0f} tasks/s by HTTP over {CONNECTIONS} connections; {raw_single:,.0f} in process\n"
        f"bulk:   {bulk:,.0f} tasks/s by HTTP, {MAX_SUBMIT_SIZE} a request over 2 connections; {raw_bulk:,.0f} in process"
    )


if __name__ == "__main__":
    main()
