"""What the storage itself can do here, from one Python process: python -m peerbench.rawlimits <backend>.

Runs in the `raw` environment and prints one JSON object of {measurement: figure}.
Every rate is rows (or objects) per second with the benchmark's 100-byte payload.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from peerbench.base import Settings, chunks, dumps, make_payload

S = Settings.from_env()
BODY = dumps(make_payload(1))


def timed(fn: Callable[[], int], seconds: float = 2.0) -> float:
    """Repeat fn, which returns how many items it handled, for about `seconds` or until it returns 0."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        if not (count := fn()):
            break
        done += count
    return done / (time.perf_counter() - start)


async def atimed(fn: Callable[[], Awaitable[int]], workers: int, seconds: float = 2.0) -> tuple[float, list[float]]:
    """`workers` tasks repeat fn; returns the overall rate and each call's milliseconds."""
    start, calls, done = time.perf_counter(), [], 0

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() - start < seconds:
            t = time.perf_counter()
            count = await fn()  # not `done += await`, which would lose updates
            done += count
            calls.append((time.perf_counter() - t) * 1e3)

    await asyncio.gather(*(loop() for _ in range(workers)))
    return done / (time.perf_counter() - start), sorted(calls)


def redis_limits() -> dict[str, float]:
    import redis

    r = redis.Redis(*S.redis_host_port)
    out: dict[str, float] = {}

    def piped(add: Callable[[Any], None], count: int = 100) -> Callable[[], int]:
        def run() -> int:
            pipe = r.pipeline(transaction=False)
            for _ in range(count):
                add(pipe)
            pipe.execute()
            return count

        return run

    out["LPUSH one by one"] = timed(lambda: bool(r.lpush("q", BODY)) or 1)
    r.delete("q")
    out["LPUSH pipeline of 100"] = timed(piped(lambda p: p.lpush("q", BODY)))
    out["LPUSH 100 values a command"] = timed(lambda: len([r.lpush("v", *[BODY] * 100)]) * 100)
    out["BRPOPLPUSH one by one"] = timed(lambda: len([r.brpoplpush("q", "w", 1)]), 1.0)
    out["RPOPLPUSH pipeline of 100"] = timed(piped(lambda p: p.rpoplpush("q", "w")), 1.0)
    out["LPOP count 100"] = timed(lambda: len(r.lpop("v", 100) or []), 1.0)
    r.flushall()
    for _ in range(100):
        piped(lambda p: p.xadd("s", {"d": BODY}), 1000)()
    r.xgroup_create("s", "g", id="0")

    def stream() -> int:
        got = r.xreadgroup("g", "c", {"s": ">"}, count=100)
        ids = [i for i, _ in got[0][1]] if got else []
        if ids:
            r.pipeline(transaction=False).xack("s", "g", *ids).xdel("s", *ids).execute()
        return len(ids)

    out["stream XREADGROUP 100 + XACK + XDEL"] = timed(stream, 1.5)
    r.flushall()
    return out


def postgres_limits() -> dict[str, float]:
    import asyncpg
    import psycopg

    out: dict[str, float] = {}
    c = psycopg.connect(S.pg_dsn, autocommit=True)
    c.execute("create table q (id bigserial primary key, status smallint not null default 0, payload jsonb)")
    c.execute("create index q_ready on q (id) where status = 0")
    body = BODY.decode()
    out["select 1 (round trip)"] = timed(lambda: len(c.execute("select 1", prepare=True).fetchall()), 1.0)
    out["insert + commit, 1 connection"] = timed(
        lambda: c.execute("insert into q (payload) values (%s)", (body,), prepare=True).rowcount
    )

    async def many() -> None:
        for size in (8, 50):
            pool = await asyncpg.create_pool(S.pg_dsn, min_size=size, max_size=size)

            async def insert() -> int:
                await pool.execute("insert into q (payload) values ($1)", body)
                return 1

            out[f"insert + commit, {size} connections"] = (await atimed(insert, size))[0]
            await pool.close()

    asyncio.run(many())
    batch = [body] * 1000
    insert = "insert into q (payload) select unnest(%s::jsonb[])"
    out["unnest insert, 1000 rows a commit"] = timed(lambda: c.execute(insert, (batch,), prepare=True).rowcount)

    def copy() -> int:
        with c.cursor() as cur, cur.copy("copy q (payload) from stdin") as cp:
            for _ in range(1000):
                cp.write_row((body,))
        return 1000

    out["COPY, 1000 rows a commit"] = timed(copy)

    def refill() -> None:
        c.execute("truncate q")
        for _ in range(100):
            c.execute(insert, (batch,))
        c.execute("vacuum analyze q")
        c.execute("checkpoint")

    claim = ("update q set status = 1 where id in (select id from q where status = 0 order by id "
             "limit %s for update skip locked) returning id, payload")  # fmt: skip
    for size in (1, 100, 500):

        def cycle(size: int = size) -> int:
            ids = [row[0] for row in c.execute(claim, (size,), prepare=True).fetchall()]
            c.execute("delete from q where id = any(%s)", (ids,), prepare=True)
            return len(ids)

        refill()
        out[f"SKIP LOCKED claim {size} + delete {size} (100k backlog)"] = timed(cycle, 2.0)
    refill()
    out["SKIP LOCKED claim 100, claim only (100k backlog)"] = timed(
        lambda: len(c.execute(claim, (100,), prepare=True).fetchall())
    )
    return out


def sqlite_limits() -> dict[str, float]:
    import sqlite3

    out: dict[str, float] = {"version": sqlite3.sqlite_version}
    for sync in ("FULL", "NORMAL"):
        c = sqlite3.connect(f"{S.workdir}/raw-{sync}.db", isolation_level=None)
        c.execute("pragma journal_mode=wal")
        c.execute(f"pragma synchronous={sync}")
        c.execute("create table q (id integer primary key, status int not null default 0, payload text)")
        c.execute("create index q_ready on q (id) where status = 0")
        body, batch = BODY.decode(), [(BODY.decode(),)] * 1000
        out[f"{sync}: insert + commit"] = timed(
            lambda: c.execute("insert into q (payload) values (?)", (body,)).rowcount
        )

        def insert() -> int:
            c.execute("begin immediate")
            c.executemany("insert into q (payload) values (?)", batch)
            c.execute("commit")
            return 1000

        out[f"{sync}: insert, 1000 rows a commit"] = timed(insert)
        for size in (1, 100):
            c.execute("delete from q")
            for _ in range(100):
                insert()

            def cycle(size: int = size) -> int:
                ids = [r[0] for r in c.execute("update q set status = 1 where id in (select id from q where status = 0 "
                                               "order by id limit ?) returning id, payload", (size,)).fetchall()]  # fmt: skip
                c.execute("begin immediate")
                c.executemany("delete from q where id = ?", [(i,) for i in ids])
                c.execute("commit")
                return len(ids)

            out[f"{sync}: claim {size} + delete {size} (100k backlog)"] = timed(cycle, 2.0)
    return out


def object_limits() -> dict[str, float]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(S.s3_bucket, endpoint=S.s3_endpoint, access_key_id=S.s3_key, secret_access_key=S.s3_secret,
                    region="us-east-1", virtual_hosted_style_request=False, client_options={"allow_http": True})  # fmt: skip
    out: dict[str, float] = {}
    counter = iter(range(10**9))

    async def main() -> None:
        async def put(size: int = 1024) -> int:
            await obstore.put_async(store, f"raw/{next(counter)}", b"x" * size)
            return 1

        async def create() -> int:
            await obstore.put_async(store, f"new/{next(counter)}", b"x" * 1024, mode="create")
            return 1

        await put()
        for workers in (1, 16, 64):
            rate, calls = await atimed(put, workers, 4.0)
            out[f"PUT 1 KiB, concurrency {workers}"] = rate
            out[f"PUT 1 KiB, concurrency {workers}, p50 ms"] = calls[len(calls) // 2]
        out["PUT 1 KiB if absent, concurrency 64"] = (await atimed(create, 64, 3.0))[0]
        out["PUT 256 KiB, concurrency 16"] = (await atimed(lambda: put(256 * 1024), 16, 3.0))[0]
        etag = (await obstore.put_async(store, "cas", b"x" * 1024))["e_tag"]

        async def swap() -> int:
            nonlocal etag
            etag = (await obstore.put_async(store, "cas", b"x" * 1024, mode={"e_tag": etag}))["e_tag"]
            return 1

        try:
            rate, calls = await atimed(swap, 1, 3.0)
            out["PUT if-match, one key, one writer"] = rate
        except Exception as exc:  # noqa: BLE001 - not every server supports it
            out["PUT if-match"] = repr(exc)[:80]
        total = next(counter)
        keys = iter(range(10**9))

        async def get() -> int:
            await (await obstore.get_async(store, f"raw/{next(keys) % (total // 3)}")).bytes_async()
            return 1

        for workers in (1, 64):
            rate, calls = await atimed(get, workers, 3.0)
            out[f"GET 1 KiB, concurrency {workers}"] = rate
            out[f"GET 1 KiB, concurrency {workers}, p50 ms"] = calls[len(calls) // 2]

        async def page() -> int:
            return sum(len(chunk) for chunk in [await anext(aiter(obstore.list(store, "raw/", chunk_size=1000)))])

        rate, calls = await atimed(page, 1, 2.0)
        out["LIST one page of 1000, ms"] = calls[len(calls) // 2]
        names = [f"raw/{k}" for k in range(min(total, 3000))]
        start = time.perf_counter()
        for part in chunks(names, 1000):
            await obstore.delete_async(store, list(part))
        out["DELETE in batches of 1000"] = len(names) / (time.perf_counter() - start)

    asyncio.run(main())
    return out


if __name__ == "__main__":
    kind = sys.argv[1].removesuffix("-aof")
    measure = {"redis": redis_limits, "postgres": postgres_limits, "sqlite": sqlite_limits, "object": object_limits}[
        kind
    ]
    print(json.dumps(measure()))
