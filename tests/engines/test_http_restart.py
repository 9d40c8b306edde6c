"""A worker over HTTP whose server is killed and restarted under load."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.errors import StorageError
from qo.model import Status
from qo.testing.samples import new
from tests.conditions import delay

ROOT = Path(__file__).parents[2]
TASKS = 6000


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


async def until(check: Callable[[], Awaitable[bool]], *, within: float = 90.0) -> None:
    async with asyncio.timeout(within):
        while True:
            try:
                if await check():
                    return
            except StorageError:
                pass
            await delay(0.02)


async def test_nothing_is_lost_when_the_server_is_killed_under_load(tmp_path: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    serve = (
        "qo",
        "serve",
        "--url",
        f"sqlite:///{tmp_path}/qo.db",
        "--port",
        str(unused_tcp_port),
        "--log-level",
        "error",
        "--check-interval",
        "1",
        "--expiry-grace",
        "1",
    )
    engine = HttpEngine(address_of(url))
    await engine.open()

    async def completed() -> int:
        return sum(n for lane, n in (await engine.count()).items() if lane.status is Status.COMPLETED)

    async def serving() -> bool:
        return await engine.count() is not None

    for done in (1, TASKS // 3):
        with process(*serve) as server:
            await until(serving)
            if done == 1:
                await engine.add([new(n, type="nothing", payload=b"{}") for n in range(TASKS)])
                starting = contextlib.ExitStack()
                worker = starting.enter_context(
                    process("qo", "worker", "tests.engines.http_app:app", "--url", url, "--no-monitor", "--lease", "10")
                )

            async def enough(done: int = done) -> bool:
                return await completed() >= done

            await until(enough)
            server.kill()  # SIGKILL, during claims and settlements
    with starting, process(*serve):

        async def all_done() -> bool:
            return await completed() == TASKS

        await until(all_done)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 40) == 0
        assert await completed() == TASKS
    await engine.close()
