"""Peers that run on Postgres."""

from __future__ import annotations

from typing import Any

from peerbench.base import Adapter, Payload, dumps, hit

from adapters.redis import HueyRedis, SaqRedis


class _Postgres(Adapter):
    backend = "postgres"

    def _count(self, query: str) -> int:
        """Run a counting query on a connection of its own."""
        import psycopg

        if not hasattr(self, "_conn"):
            self._conn = psycopg.connect(self.s.pg_dsn, autocommit=True)
        return self._conn.execute(query).fetchone()[0]


class Procrastinate(_Postgres):
    name, env, package, bulk = "procrastinate", "procrastinate", "procrastinate", True
    concurrency = 20
    config = "concurrency 20, pool 22, LISTEN/NOTIFY, jobs kept (default)"
    guarantee = "at-least-once, row kept as result, fsync per commit"

    def _app(self, pool: int) -> Any:
        import procrastinate

        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self.s.pg_dsn, min_size=2, max_size=pool)
        )

        @app.task(name="noop")
        async def noop(payload: Payload) -> int:
            return hit(payload)

        return app

    async def reset(self) -> None:
        async with self._app(2).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self.app = self._app(20)
        await self.app.open_async()
        self.task = self.app.tasks["noop"]

    async def close(self) -> None:
        await self.app.close_async()

    async def enqueue(self, payload: Payload) -> None:
        await self.task.defer_async(payload=payload)

    async def enqueue_bulk(self, payloads: list[Payload]) -> None:
        await self.task.batch_defer_async(*({"payload": p} for p in payloads))

    async def remaining(self) -> int:
        return self._count("select count(*) from procrastinate_jobs where status in ('todo', 'doing')")

    async def run_worker(self) -> None:
        async with self._app(self.concurrency_now + 2).open_async() as app:
            await app.run_worker_async(concurrency=self.concurrency_now)


class PgQueuer(_Postgres):
    name, env, package, bulk = "pgqueuer", "pgqueuer", "pgqueuer", True
    concurrency = 500
    config = "asyncpg, batch_size 500 (default is 10), uvloop"
    guarantee = "at-least-once, row moved to log, fsync per commit"

    async def reset(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(self.s.pg_dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        self.pool = await asyncpg.create_pool(self.s.pg_dsn, min_size=2, max_size=20)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def enqueue(self, payload: Payload) -> None:
        await self.queries.enqueue("noop", dumps(payload))

    async def enqueue_bulk(self, payloads: list[Payload]) -> None:
        n = len(payloads)
        await self.queries.enqueue(["noop"] * n, [dumps(p) for p in payloads], [0] * n)

    async def remaining(self) -> int:
        return await self.pool.fetchval("select count(*) from pgqueuer")

    def run_worker(self) -> None:
        """What `pgq run` does; that command itself fails with the newest typer."""
        import uvloop
        from apps import pgqueuer_app

        async def work() -> None:
            pgq = await pgqueuer_app.main()
            await pgq.run(batch_size=self.concurrency_now)

        uvloop.run(work())


class Pgqrs(_Postgres):
    name, env, package, bulk = "pgqrs", "pgqrs", "pgqrs", True
    concurrency = 500
    config = "hand-written loop: dequeue 500, archive_many; 50 ms poll when empty"
    guarantee = "at-least-once (visibility timeout), row archived, fsync per commit"

    async def _store(self) -> Any:
        import pgqrs

        self.pgqrs = pgqrs
        config = pgqrs.Config(self.s.pg_dsn, max_connections=20)
        config.max_enqueue_per_second = config.max_enqueue_burst = 1_000_000  # the default limit is 1000/s
        return await pgqrs.connect_with(config)

    async def reset(self) -> None:
        store = await self._store()
        await self.pgqrs.admin(store).install()
        await store.queue("noop")

    async def open(self) -> None:
        self.store = await self._store()
        self.producer = await self.store.producer("noop")

    async def enqueue(self, payload: Payload) -> None:
        await self.producer.enqueue(payload)

    async def enqueue_bulk(self, payloads: list[Payload]) -> None:
        await self.pgqrs.enqueue_batch(self.producer, payloads)

    async def remaining(self) -> int:
        return self._count("select count(*) from pgqrs_messages where archived_at is null")

    async def run_worker(self) -> None:
        import asyncio

        store = await self._store()
        consumer = await store.consumer("noop")
        while True:
            messages = await consumer.dequeue(batch_size=self.concurrency_now)
            if not messages:
                await asyncio.sleep(0.05)
                continue
            for message in messages:
                hit(message.payload)
            await consumer.archive_many([m.id for m in messages])


class Chancy(_Postgres):
    name, env, package, bulk = "chancy", "chancy", "chancy", True
    concurrency = 500
    config = "AsyncExecutor, concurrency 500, eager_polling, NOTIFY"
    guarantee = "at-least-once, row kept, completions flushed once a second"

    def _app(self) -> Any:
        from chancy import Chancy

        return Chancy(self.s.pg_dsn)

    def _job(self, payload: Payload) -> Any:
        from apps import chancy_app

        return chancy_app.noop.job.with_kwargs(payload=payload)

    async def reset(self) -> None:
        from chancy import Queue

        async with self._app() as app:
            await app.migrate()
            await app.declare(Queue("default", executor="chancy.executors.asyncex.AsyncExecutor",
                                    concurrency=self.concurrency_now, eager_polling=True), upsert=True)  # fmt: skip

    async def open(self) -> None:
        self.app = self._app()
        await self.app.pool.open()

    async def close(self) -> None:
        await self.app.pool.close()

    async def enqueue(self, payload: Payload) -> None:
        await self.app.push(self._job(payload))

    async def enqueue_bulk(self, payloads: list[Payload]) -> None:
        async for _ in self.app.push_many([self._job(p) for p in payloads]):
            pass

    async def remaining(self) -> int:
        return self._count("select count(*) from chancy_jobs where state in ('pending', 'running')")

    async def run_worker(self) -> None:
        from chancy import Worker

        async with self._app() as app, Worker(app) as worker:
            await worker.wait_for_shutdown()


class SaqPostgres(SaqRedis):
    name, backend = "saq-postgres", "postgres"
    concurrency = 20
    config = "concurrency 20, pool 20, NOTIFY, uvloop"
    guarantee = "at-least-once, results kept 600 s, fsync per commit"

    def _queue(self) -> Any:
        from saq import Queue

        return Queue.from_url(self.s.pg_dsn)

    async def reset(self) -> None:
        queue = self._queue()
        await queue.connect()
        await queue.disconnect()


class HueyPostgres(HueyRedis):
    name, backend = "huey-postgres", "postgres"
    concurrency = 4
    config = "PostgresHuey, 4 threads"
    guarantee = "at-most-once (pop), results kept until read, fsync per commit"
    options = {"store": "postgres"}
    producers = 20


class Dbos(_Postgres):
    name, env, package, style = "dbos", "dbos", "dbos", "sync"
    config = "async workflow on a queue, polling 0.1 s (default 1 s)"
    guarantee = "durable workflow (recovered), result kept, fsync per commit"
    options = {"polling": 0.1}
    producers = 20
    fill_concurrency = 20

    def reset(self) -> None:
        from apps import dbos_app

        dbos_app.launch()
        dbos_app.DBOS.destroy()

    def open(self) -> None:
        from dbos import DBOSClient

        self.client = DBOSClient(system_database_url=self.s.pg_dsn, application_name="bench")

    def enqueue(self, payload: Payload) -> None:
        self.client.enqueue({"workflow_name": "noop", "queue_name": "bench"}, payload)

    def remaining(self) -> int:
        return self._count("select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')")

    def run_worker(self) -> None:
        import signal
        import threading

        from apps import dbos_app

        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        dbos_app.launch()
        stop.wait()


ADAPTERS = [Procrastinate, PgQueuer, Pgqrs, Chancy, SaqPostgres, HueyPostgres, Dbos]
