"""Peers that run on Redis."""

from __future__ import annotations

from typing import Any

from peerbench.base import Adapter, Payload


class _Redis(Adapter):
    backend = "redis"

    def _keys(self) -> Any:
        """A plain Redis client for counting what is left."""
        if not hasattr(self, "_client"):
            import redis

            self._client = redis.Redis(*self.s.redis_host_port)
        return self._client


class Celery(_Redis):
    name, env, package, style = "celery", "celery", "celery", "sync"
    config = "prefork -c 1, prefetch multiplier 128, Redis result backend"
    guarantee = "at-most-once by default (early ack), results kept"
    options = {"results": True, "pool": "prefork"}

    def open(self) -> None:
        from apps import celery_app

        self.task = celery_app.noop

    def enqueue(self, payload: Payload) -> None:
        self.task.delay(payload)

    def remaining(self) -> int:
        return self._keys().llen("celery") + self._keys().hlen("unacked")

    def worker_commands(self, procs: int) -> list[list[str]]:
        pool = self.s.options["pool"]
        base = [f"{self.env_bin}/celery", "-A", "apps.celery_app", "worker", "-P", pool, "--loglevel=ERROR",
                "--without-gossip", "--without-mingle", "--without-heartbeat"]  # fmt: skip
        if pool == "solo":
            return [[*base, "-n", f"w{k}@%h"] for k in range(procs)]
        return [[*base, "-c", str(procs * self.concurrency_now)]]


class CeleryNoResult(Celery):
    name = "celery-noresult"
    config = "prefork -c 1, prefetch multiplier 128, ignore_result"
    guarantee = "at-most-once by default (early ack), no results"
    options = {"results": False, "pool": "prefork"}


class Rq(_Redis):
    name, env, package, style, bulk = "rq", "rq", "rq", "sync", True
    config = "default Worker (one fork per job)"
    guarantee = "at-least-once (started registry), results kept 500 s"
    worker_class = "rq.Worker"

    def open(self) -> None:
        import rq
        from apps import rq_app
        from redis import Redis

        self.fn, self.rq = rq_app.noop, rq
        self.queue = rq.Queue("default", connection=Redis(*self.s.redis_host_port))

    def enqueue(self, payload: Payload) -> None:
        self.queue.enqueue(self.fn, payload)

    def enqueue_bulk(self, payloads: list[Payload]) -> None:
        self.queue.enqueue_many([self.rq.Queue.prepare_data(self.fn, (p,)) for p in payloads])

    def remaining(self) -> int:
        return self._keys().llen("rq:queue:default") + self._keys().zcard("rq:wip:default")

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/rq", "worker", "--url", self.s.redis_url, "--quiet",
                 "--worker-class", self.worker_class, "default"]] * procs  # fmt: skip


class RqSimple(Rq):
    name = "rq-simple"
    config = "SimpleWorker (no fork)"
    worker_class = "rq.SimpleWorker"


class Dramatiq(_Redis):
    name, env, package, style = "dramatiq", "dramatiq", "dramatiq", "sync"
    concurrency = 32
    config = "1 process x 32 threads (8 is the default and 15 % slower)"
    guarantee = "at-least-once, no results"

    def open(self) -> None:
        from apps import dramatiq_app

        self.actor = dramatiq_app.noop

    def enqueue(self, payload: Payload) -> None:
        self.actor.send(payload)

    def remaining(self) -> int:
        return self._keys().hlen("dramatiq:default.msgs")

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/dramatiq", "apps.dramatiq_app", "-p", str(procs),
                 "-t", str(self.concurrency_now), "--skip-logging"]]  # fmt: skip


class HueyRedis(_Redis):
    name, env, package, style = "huey-redis", "huey", "huey", "sync"
    concurrency = 8
    config = "RedisHuey, 8 threads"
    guarantee = "at-most-once (pop), results kept until read"
    options = {"store": "redis"}

    def open(self) -> None:
        from apps import huey_app

        self.huey, self.task = huey_app.huey, huey_app.noop

    def enqueue(self, payload: Payload) -> None:
        self.task(payload)

    def remaining(self) -> int:
        return self.huey.pending_count()

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/huey_consumer", "apps.huey_app.huey", "-q", "-k", "thread",
                 "-w", str(self.concurrency_now)]] * procs  # fmt: skip


class Arq(_Redis):
    name, env, package = "arq", "arq", "arq"
    concurrency = 10
    config = "defaults: max_jobs 10, poll_delay 0.5 s, queue_read_limit 100"
    guarantee = "at-least-once, results kept 1 h"
    options = {"poll_delay": 0.5, "read_limit": None}

    async def open(self) -> None:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.pool = await create_pool(RedisSettings.from_dsn(self.s.redis_url))

    async def enqueue(self, payload: Payload) -> None:
        await self.pool.enqueue_job("noop", payload)

    async def remaining(self) -> int:
        return await self.pool.zcard("arq:queue")

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/arq", "apps.arq_app.WorkerSettings"]] * procs


class ArqTuned(Arq):
    name = "arq-tuned"
    concurrency = 100
    config = "max_jobs 100, poll_delay 10 ms, queue_read_limit 500, uvloop"
    options = {"poll_delay": 0.01, "read_limit": 500, "uvloop": True}


class SaqRedis(_Redis):
    name, env, package = "saq-redis", "saq", "saq"
    concurrency = 50
    config = "concurrency 50, uvloop"
    guarantee = "at-least-once (active list + sweep), results kept 600 s"

    def _queue(self) -> Any:
        from saq import Queue

        return Queue.from_url(self.s.redis_url)

    async def open(self) -> None:
        self.queue = self._queue()
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self, payload: Payload) -> None:
        await self.queue.enqueue("noop", payload=payload)

    async def remaining(self) -> int:
        return await self.queue.count("queued") + await self.queue.count("active")

    def run_worker(self) -> None:
        import uvloop

        uvloop.run(self._work())

    async def _work(self) -> None:
        from apps.saq_app import noop
        from saq import Worker

        queue = self._queue()
        await queue.connect()
        await Worker(queue, functions=[("noop", noop)], concurrency=self.concurrency_now).start()


class TaskiqStream(_Redis):
    name, env, package = "taskiq-stream", "taskiq", "taskiq"
    concurrency = 100
    config = "RedisStreamBroker + result backend, 100 async tasks (default), uvloop"
    guarantee = "at-least-once (stream + ack), results kept 600 s"
    options = {"broker": "stream"}

    async def open(self) -> None:
        from apps import taskiq_app

        self.broker, self.task = taskiq_app.broker, taskiq_app.noop
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    async def enqueue(self, payload: Payload) -> None:
        await self.task.kiq(payload)

    async def remaining(self) -> int:
        info = self._keys().xinfo_groups("taskiq")[0]
        return (info["lag"] or 0) + info["pending"]

    def worker_commands(self, procs: int) -> list[list[str]]:
        return [[f"{self.env_bin}/taskiq", "worker", "apps.taskiq_app:broker", "--workers", str(procs),
                 "--max-async-tasks", str(self.concurrency_now), "--log-level", "ERROR"]]  # fmt: skip


class TaskiqList(TaskiqStream):
    name = "taskiq-list"
    config = "ListQueueBroker + result backend, 100 async tasks (default), uvloop"
    guarantee = "at-most-once (pop), results kept 600 s"
    options = {"broker": "list"}

    async def remaining(self) -> int:
        return self._keys().llen("taskiq")


ADAPTERS = [
    Celery,
    CeleryNoResult,
    Rq,
    RqSimple,
    Dramatiq,
    HueyRedis,
    Arq,
    ArqTuned,
    SaqRedis,
    TaskiqStream,
    TaskiqList,
]
