"""Peers that run on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerbench.base import Adapter, Payload, dumps, hit

from adapters.redis import HueyRedis


class HueySqlite(HueyRedis):
    name, backend = "huey-sqlite", "sqlite"
    concurrency = 1
    config = "SqliteHuey defaults (WAL, synchronous FULL), 1 thread, polling 0.1 s backing off"
    guarantee = "at-most-once (pop), results kept until read, fsync per commit"
    options = {"store": "sqlite"}
    producers = 8


class HueySqliteNosync(HueySqlite):
    name = "huey-sqlite-nosync"
    config = "SqliteHuey fsync=False (WAL, synchronous OFF), 1 thread"
    guarantee = "at-most-once (pop), results kept until read, no fsync"
    options = {"store": "sqlite", "sqlite": {"fsync": False}}


class LiteQueue(Adapter):
    name, env, package, style, backend = "litequeue", "litequeue", "litequeue", "sync", "sqlite"
    config = "hand-written loop pop/done; 50 ms poll when empty (WAL, synchronous NORMAL)"
    guarantee = "at-least-once (locked row), row kept, fsync at checkpoints only"
    producers = 8

    def _queue(self) -> Any:
        from litequeue import LiteQueue

        return LiteQueue(self.s.sqlite_path, timeout=30)

    def reset(self) -> None:
        self._queue().close()

    def open(self) -> None:
        self.queue = self._queue()

    def enqueue(self, payload: Payload) -> None:
        self.queue.put(dumps(payload).decode())

    def thread_producer(self) -> Callable[[Payload], Any]:
        queue = self._queue()
        return lambda payload: queue.put(dumps(payload).decode())

    def remaining(self) -> int:
        return self.queue.conn.execute("select count(*) from Queue where status < 2").fetchone()[0]

    def run_worker(self) -> None:
        import time

        queue = self._queue()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(0.05)
                continue
            hit(message.data)
            queue.done(message.message_id)


ADAPTERS = [HueySqlite, HueySqliteNosync, LiteQueue]
