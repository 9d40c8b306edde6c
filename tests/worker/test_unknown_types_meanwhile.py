"""What happens while unknown types are checked and their tasks are failed."""

import asyncio
from collections.abc import Sequence

from qo.engine import Engine
from qo.forwarding_engine import ForwardingEngine
from qo.model import Change, Note, Status
from qo.notes import KNOWN_TYPES
from qo.testing.clock import ManualClock
from qo.worker.controls import ClaimScope
from tests.worker.bench import Bench
from tests.worker.unknown_type_checks import clock, timed, unknown_types

__all__ = ["clock", "timed"]  # fixtures


class PausedAfterOnePage(ForwardingEngine):
    """Somebody pauses the type after the first page has been failed, and the worker reads the controls."""

    def __init__(self, bench: Bench, scope: ClaimScope) -> None:
        super().__init__(bench.client.engine)
        self._bench, self._scope = bench, scope

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await self.engine.apply(changes)
        await self._bench.client.controls.pause(types=["typo"])
        await self._scope.read()
        return answers


async def test_a_pause_stops_failing_before_the_next_page(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    await timed.client.submit_many([timed.client.new_task("typo", b"{}") for _ in range(1200)])
    scope = timed.scope()
    checked = unknown_types(timed, clock, fail_after=0.0, engine=PausedAfterOnePage(timed, scope), scope=scope)
    await checked.check()
    clock.advance(1)
    assert await checked.check() == 500
    counts = await timed.client.engine.count()
    assert sum(number for lane, number in counts.items() if lane.status is Status.PENDING) == 700


class SlowNotes(ForwardingEngine):
    """Reads the note of known types only when the test allows it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()

    async def read_note(self, name: str) -> Note | None:
        if name == KNOWN_TYPES:
            self.asked.set()
            await self.allowed.wait()
        return await self.engine.read_note(name)


async def test_a_drain_checks_beside_a_regular_check(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    engine = SlowNotes(timed.client.engine)
    checked = unknown_types(timed, clock, fail_after=60.0, engine=engine)
    first = await timed.submit("typo")
    engine.allowed.set()
    await checked.check()
    engine.allowed.clear()
    engine.asked.clear()
    draining = asyncio.create_task(checked.has_more_to_fail())
    await engine.asked.wait()
    await timed.client.cancel(first)
    regular = asyncio.create_task(checked.check())
    for _ in range(20):
        await asyncio.sleep(0)
    engine.allowed.set()
    assert (await draining, await regular) == (True, 0)


async def test_a_slow_check_of_a_drain_counts_as_one(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    engine = SlowNotes(timed.client.engine)
    checked = unknown_types(timed, clock, fail_after=0.0, engine=engine)
    await timed.submit("typo")
    draining = asyncio.create_task(checked.has_more_to_fail())
    await engine.asked.wait()
    clock.advance(5)
    engine.allowed.set()
    assert await draining
    assert await checked.check() == 1
