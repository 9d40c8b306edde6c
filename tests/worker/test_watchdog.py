"""A worker whose own loop is stuck ends its process, non-zero and loudly."""

import subprocess
import sys

STUCK = """
import asyncio, threading
from qo.engines.memory import MemoryEngine
from qo.client import Client
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Watchdog, Worker, WorkerSettings

class Blocking(MemoryEngine):
    async def claim(self, request):
        threading.Event().wait()

async def fine(): ...

async def main():
    registry = Registry()
    registry.add(make_handler(fine, type="fine", options=make_options(fine)))
    worker = Worker(Client(Blocking()), registry, WorkerSettings())
    Watchdog(worker, after=0.4)
    await worker.run()

asyncio.run(main())
"""


def test_a_worker_whose_loop_no_longer_turns_exits_with_its_own_code() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 6
    assert "event loop has been blocked for" in ended.stderr
    assert "in claim" in ended.stderr  # where it hangs
