"""A worker whose store stops answering, and changes while it waits for its store."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.fleet_limits.rules import STATES
from qo.forwarding_engine import ForwardingEngine
from qo.model import Change, Limit, Note, Status
from qo.notes import CONTROL
from qo.worker import Worker, WorkerSettings, WorkerStuck
from tests.conditions import TIMEOUT, forever, until
from tests.worker.bench import Bench


class _FrozenNotes:
    """An engine that claims tasks but never answers the `number`-th read of the controls."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number = engine, number
        self.is_frozen = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def read_note(self, name: str) -> Note | None:
        if name == CONTROL:
            self._number -= 1
            if self._number <= 0:
                self.is_frozen = True
                await forever()
        return await self._engine.read_note(name)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_worker_whose_controls_are_never_read_gives_up(bench: Bench, number: int) -> None:
    async def fine() -> None: ...

    bench.handle(fine)
    await bench.submit("fine")
    frozen = Client(_FrozenNotes(bench.client.engine, number))  # type: ignore[arg-type]
    worker = Worker(frozen, bench.registry, WorkerSettings(stuck_after=0.1, poll=0.05))
    with pytest.raises(WorkerStuck, match="has not answered"):
        await asyncio.wait_for(worker.run(), TIMEOUT)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_worker_whose_controls_are_never_read_can_be_stopped(bench: Bench, number: int) -> None:
    async def fine() -> None: ...

    bench.handle(fine)
    frozen = _FrozenNotes(bench.client.engine, number)
    worker = Worker(Client(frozen), bench.registry, WorkerSettings(poll=0.05, grace=0.1))  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    await until(lambda: frozen.is_frozen)
    worker.stop()
    await asyncio.wait_for(running, TIMEOUT)


class _Meddling(ForwardingEngine):
    """An engine in which something happens while a slot is stored."""

    meddle: Callable[[], None] | None = None

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(STATES) and self.meddle is not None:
            self.meddle()
        return await super().write_note(name, data, expected=expected)


async def test_a_task_whose_handler_is_removed_while_it_gets_a_slot_is_handed_back(bench: Bench) -> None:
    async def limited() -> None: ...

    engine = _Meddling(bench.client.engine)
    bench.client = Client(engine)
    bench.handle(limited, limit=Limit(concurrency=1))
    async with bench.working() as worker:

        def remove() -> None:
            bench.registry.remove("limited")
            worker.refresh()

        engine.meddle = remove
        task_id = await bench.submit("limited")
        await bench.seen(task_id, lambda task: task.status is Status.PENDING and task.attempt == 1)
        assert not worker.status.is_stopping


class _FrozenWrites:
    """An engine that answers no change to this status, and does not end these calls when they are cancelled."""

    def __init__(self, engine: object, status: Status) -> None:
        self._engine, self._status, self.is_over = engine, status, asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        while any(change.to is self._status for change in changes) and not self.is_over.is_set():
            with suppress(asyncio.CancelledError):
                await self.is_over.wait()
        answers: list[bool] = await self._engine.apply(changes)  # type: ignore[attr-defined]
        return answers


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.RUNNING])
async def test_a_worker_whose_settlements_or_renewals_are_never_answered_gives_up(bench: Bench, status: Status) -> None:
    """All its slots are taken, so it makes no claim."""

    async def work() -> None:
        if status is Status.RUNNING:
            await forever()

    bench.handle(work)
    await bench.submit("work")
    frozen = _FrozenWrites(bench.client.engine, status)
    settings = WorkerSettings(stuck_after=0.1, poll=0.05, concurrency=1, lease=0.3)
    worker = Worker(Client(frozen), bench.registry, settings)  # type: ignore[arg-type]
    with pytest.raises(WorkerStuck, match=r"has not answered a (settlement|renewal of leases) for"):
        await asyncio.wait_for(worker.run(), TIMEOUT)
    frozen.is_over.set()
