"""qo itself, one adapter for each store: the URL is all that differs."""

from __future__ import annotations

from typing import Any

from peerbench.base import Adapter, Payload


class Qo(Adapter):
    env, package, style = "qo", "qo-queue", "async"
    bulk = True
    guarantee = "at-least-once (lease), results and history kept, fsync per commit"

    @property
    def url(self) -> str:
        raise NotImplementedError

    async def open(self) -> None:
        from qo.client import connect

        self.client = await connect(self.url).open()

    async def close(self) -> None:
        await self.client.close()

    async def enqueue(self, payload: Payload) -> None:
        await self.client.enqueue("noop", {"payload": payload})

    async def enqueue_bulk(self, payloads: list[Payload]) -> None:
        from qo.codec import encode_value

        new = self.client.new_task
        await self.client.submit_many([new("noop", encode_value({"payload": payload})) for payload in payloads])

    async def remaining(self) -> int:
        stats = await self.client.stats()
        return int(stats["pending"] + stats["running"])

    def worker_env(self) -> dict[str, str]:
        return {"QO_URL": self.url, "QO_LOG_LEVEL": "error", "QO_CONCURRENCY": str(self.concurrency_now)}

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/qo", "worker", "apps.qo_app:app"]] * procs

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.config = f"qo worker, {cls.concurrency} slots, plain function in threads"


class QoSqlite(Qo):
    name, backend, concurrency = "qo-sqlite", "sqlite", 10

    @property
    def url(self) -> str:
        return f"sqlite:///{self.s.sqlite_path}"


class QoPostgres(Qo):
    name, backend, concurrency = "qo-postgres", "postgres", 10

    @property
    def url(self) -> str:
        return self.s.pg_dsn


class QoRedis(Qo):
    name, backend, concurrency = "qo-redis", "redis", 10
    guarantee = "at-least-once (lease), results and history kept, as durable as Redis is set up"

    @property
    def url(self) -> str:
        return self.s.redis_url


class _Plain:
    """The same from code without an event loop, as the peers whose producers are plain code."""

    style = "sync"
    bulk = False
    producers = 8

    def open(self) -> None:
        from qo import sync

        self.client = sync.connect(self.url).open()

    def close(self) -> None:
        self.client.close()

    def enqueue(self, payload: Payload) -> None:
        self.client.enqueue("noop", {"payload": payload})

    def thread_producer(self) -> Any:
        return self.enqueue

    def remaining(self) -> int:
        stats = self.client.stats()
        return int(stats["pending"] + stats["running"])


class QoSqlitePlain(_Plain, QoSqlite):
    name = "qo-sqlite-plain"


class QoRedisPlain(_Plain, QoRedis):
    name = "qo-redis-plain"


ADAPTERS = [QoSqlite, QoSqlitePlain, QoPostgres, QoRedis, QoRedisPlain]
