"""An app as it should be written: a type checker has nothing to say about it."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

import qo
from qo import SyncTaskHandle

app = qo.App("memory://")


@dataclass
class Receipt:
    to: str


@app.task
def plain(n: int, *, loud: bool = False) -> str:
    return str(n) * (2 if loud else 1)


@app.task(max_retries=5, timeout=30, rate_limit=10, concurrency=3, priority="high", needs={"gpu"})
async def send_email(to: str, subject: str = "Hi") -> Receipt:
    return Receipt(to + subject)


@app.task()
def nothing() -> None: ...


def from_plain_code() -> None:
    assert_type(plain(1), str)
    assert_type(plain.enqueue(1, loud=True), SyncTaskHandle[str])
    assert_type(plain.enqueue(n=1).result(timeout=3), str)
    awaitable: Coroutine[Any, Any, Receipt] = send_email("a")
    awaitable.close()
    assert_type(send_email.enqueue(to="a", subject="b"), SyncTaskHandle[Receipt])
    assert_type(send_email.using(delay=60, idempotency_key="k").enqueue(to="a").result(), Receipt)
    assert_type(plain.using(max_retries=0).describe(2).id, str)
    nothing.enqueue()


async def from_a_loop() -> None:
    assert_type(await send_email("a"), Receipt)
    assert_type(await send_email.aenqueue("a", subject="b"), SyncTaskHandle[Receipt])
    assert_type(await (await plain.aenqueue(1)).aresult(), str)
    assert_type(await (await send_email.using(priority="low").aenqueue("a")).aresult(timeout=1), Receipt)
