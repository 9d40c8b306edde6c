"""Producer process: python -m peerbench.client <adapter>.

Reads one JSON command per line on stdin, answers one JSON line on stdout.
It runs in the peer's virtual environment, so the enqueue path that is timed
is exactly the one a user's program would run.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sys
import threading
import time
import traceback
from typing import Any

from adapters import ADAPTERS

from peerbench.base import Adapter, Settings, chunks, make_payload


async def call(fn: Any, *args: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread, away from the running loop."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    return await asyncio.to_thread(fn, *args)


class Client:
    def __init__(self, adapter: Adapter) -> None:
        self.a = adapter
        self.sync = adapter.style == "sync"

    # ---- commands ------------------------------------------------------------
    async def reset(self) -> dict[str, Any]:
        await call(self.a.reset)
        return {}

    async def open(self) -> dict[str, Any]:
        await call(self.a.open)
        return {}

    async def close(self) -> dict[str, Any]:
        await call(self.a.close)
        return {}

    async def remaining(self) -> dict[str, Any]:
        return {"remaining": await call(self.a.remaining)}

    async def version(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {"version": version(self.a.package)}

    async def start_worker(self) -> dict[str, Any]:
        """For storages that live in one process only."""
        self.worker = asyncio.ensure_future(self.a.run_worker())
        return {}

    async def enq_one(self, n: int, cap: float, base: int = 0) -> dict[str, Any]:
        """One producer, one awaited enqueue after another."""
        enqueue, done, start = self.a.enqueue, 0, time.monotonic()
        cpu = time.process_time()
        deadline = start + cap
        if self.sync:
            for i in range(base, base + n):
                enqueue(make_payload(i))
                done += 1
                if not done % 16 and time.monotonic() > deadline:
                    break
        else:
            for i in range(base, base + n):
                await enqueue(make_payload(i))
                done += 1
                if not done % 16 and time.monotonic() > deadline:
                    break
        return self._result(done, start, cpu)

    async def enq_conc(self, n: int, cap: float) -> dict[str, Any]:
        """`producers` concurrent producers: asyncio tasks, or threads for a sync peer."""
        todo, errors, lock = iter(range(n)), [], threading.Lock()
        start, cpu = time.monotonic(), time.process_time()
        deadline, done = start + cap, [0] * self.a.producers

        def next_index() -> int | None:
            with lock:
                return next(todo, None)

        def threaded(slot: int) -> None:
            try:
                enqueue = self.a.thread_producer()
                while (i := next_index()) is not None and time.monotonic() < deadline:
                    enqueue(make_payload(i))
                    done[slot] += 1
            except Exception as exc:  # noqa: BLE001 - reported, the run goes on
                errors.append(repr(exc)[:200])

        async def tasked(slot: int) -> None:
            try:
                while (i := next(todo, None)) is not None and time.monotonic() < deadline:
                    await self.a.enqueue(make_payload(i))
                    done[slot] += 1
            except Exception as exc:  # noqa: BLE001
                errors.append(repr(exc)[:200])

        if self.sync:
            threads = [threading.Thread(target=threaded, args=(s,)) for s in range(self.a.producers)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        else:
            await asyncio.gather(*(tasked(s) for s in range(self.a.producers)))
        return self._result(sum(done), start, cpu) | {"errors": len(errors), "first_error": (errors or [None])[0]}

    async def enq_bulk(self, n: int, cap: float) -> dict[str, Any]:
        """The peer's bulk API in batches of `bulk_batch`."""
        done, start, cpu = 0, time.monotonic(), time.process_time()
        for part in chunks(range(n), self.a.bulk_batch):
            await call(self.a.enqueue_bulk, [make_payload(i) for i in part])
            done += len(part)
            if time.monotonic() - start > cap:
                break
        return self._result(done, start, cpu)

    async def fill(self, n: int) -> dict[str, Any]:
        """Queue n tasks as fast as the peer can, for the drain phases."""
        if self.a.bulk or self.a.fill_with_bulk:
            return await self.enq_bulk(n, 1e9)
        if self.a.fill_concurrency > 1:
            return await self.enq_conc(n, 1e9)
        return await self.enq_one(n, 1e9)

    async def steady(self, rate: float, seconds: float, base: int) -> dict[str, Any]:
        """Open-loop producer at a fixed rate; the payload carries the call's start time."""
        count, pending, failed = int(rate * seconds), set(), 0
        start = time.monotonic() + 0.05
        for k in range(count):
            delay = start + k / rate - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            payload = make_payload(base + k)
            if self.sync:
                self.a.enqueue(payload)
            else:
                pending.add(asyncio.ensure_future(self.a.enqueue(payload)))
        if pending:
            failed = sum(isinstance(r, Exception) for r in await asyncio.gather(*pending, return_exceptions=True))
        return {"sent": count, "failed": failed}

    @staticmethod
    def _result(done: int, start: float, cpu: float) -> dict[str, Any]:
        seconds = time.monotonic() - start
        return {
            "done": done,
            "seconds": seconds,
            "rate": done / seconds if seconds else 0.0,
            "cpu_us": (time.process_time() - cpu) / max(done, 1) * 1e6,
        }


async def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints must not disturb the protocol
    client = Client(ADAPTERS[sys.argv[1]](Settings.from_env()))
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            answer = await getattr(client, command.pop("op"))(**command)
        except Exception as exc:  # noqa: BLE001 - handed to the controller
            traceback.print_exc()
            answer = {"error": repr(exc)[:500]}
        reply.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)  # some clients leave threads behind
