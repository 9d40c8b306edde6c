"""Group commit: who asks while a trip is under way travels with the next, and nobody waits for a timer."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from qo.trips import Trips


class Item(NamedTuple):
    id: str
    bad: bool = False


class Store:
    """Remembers every trip; each waits at the gate. A bad item fails the trip it is on."""

    def __init__(self) -> None:
        self.trips: list[list[str]] = []
        self.gate = asyncio.Event()

    async def go(self, items: Sequence[Item]) -> list[str]:
        self.trips.append([item.id for item in items])
        await self.gate.wait()
        if any(item.bad for item in items):
            raise ValueError("a bad item was aboard")
        return [f"done {item.id}" for item in items]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_to_ask_leaves_at_once_and_alone() -> None:
    store = Store()
    trips = Trips(store.go)
    asking = asyncio.create_task(trips.ask(Item("a")))
    await turns()
    assert store.trips == [["a"]]
    store.gate.set()
    assert await asking == "done a"


async def test_those_who_ask_during_a_trip_share_the_next() -> None:
    store = Store()
    trips = Trips(store.go)
    first = asyncio.create_task(trips.ask(Item("first")))
    await turns()
    rest = [asyncio.create_task(trips.ask(Item(f"{n}"))) for n in range(100)]
    await turns()
    assert store.trips == [["first"]]
    store.gate.set()
    assert await asyncio.gather(first, *rest) == ["done first", *(f"done {n}" for n in range(100))]
    assert store.trips == [["first"], [f"{n}" for n in range(100)]]


async def test_callers_of_one_moment_make_one_trip() -> None:
    store = Store()
    store.gate.set()
    trips = Trips(store.go)
    await asyncio.gather(*(trips.ask(Item(f"{n}")) for n in range(50)))
    assert len(store.trips) == 1


async def test_a_trip_carries_no_more_than_its_most() -> None:
    store = Store()
    store.gate.set()
    trips = Trips(store.go, most=4)
    await asyncio.gather(*(trips.ask(Item(f"{n}")) for n in range(10)))
    assert [len(trip) for trip in store.trips] == [4, 4, 2]


async def test_a_failing_trip_fails_only_those_aboard() -> None:
    store = Store()
    trips = Trips(store.go, most=2)
    items = [Item("a"), Item("b", bad=True), Item("c"), Item("d")]
    asking = [asyncio.create_task(trips.ask(item)) for item in items]
    store.gate.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers[:2]] == [ValueError, ValueError]
    assert answers[2:] == ["done c", "done d"]
    assert await trips.ask(Item("e")) == "done e"


async def test_the_same_task_twice_goes_to_the_next_trip_in_order() -> None:
    store = Store()
    store.gate.set()
    trips = Trips(store.go)
    await asyncio.gather(*(trips.ask(Item(name)) for name in ("a", "b", "a", "a", "c")))
    assert store.trips == [["a", "b", "c"], ["a"], ["a"]]


async def test_a_caller_cancelled_before_its_trip_is_left_behind() -> None:
    store = Store()
    trips = Trips(store.go)
    first = asyncio.create_task(trips.ask(Item("first")))
    await turns()
    gone, stays = (asyncio.create_task(trips.ask(Item(name))) for name in ("gone", "stays"))
    await turns()
    gone.cancel()
    await turns()
    store.gate.set()
    assert [await first, await stays] == ["done first", "done stays"]
    assert store.trips == [["first"], ["stays"]]


@pytest.mark.parametrize("bad", [False, True])
async def test_a_caller_cancelled_during_its_trip_does_not_disturb_the_others(*, bad: bool) -> None:
    store = Store()
    trips = Trips(store.go)
    gone, stays = (asyncio.create_task(trips.ask(Item(name, bad=bad))) for name in ("gone", "stays"))
    await turns()
    gone.cancel()
    await turns()
    store.gate.set()
    (answer,) = await asyncio.gather(stays, return_exceptions=True)
    assert isinstance(answer, ValueError) if bad else answer == "done stays"
    assert gone.cancelled()
    assert store.trips == [["gone", "stays"]]


async def test_finishing_waits_for_everyone_who_asked() -> None:
    store = Store()
    trips = Trips(store.go)
    asking = [asyncio.create_task(trips.ask(Item(name))) for name in ("a", "a", "b")]
    await turns()
    finishing = asyncio.create_task(trips.finish())
    await turns()
    assert not finishing.done()
    store.gate.set()
    await finishing
    assert all(task.done() for task in asking) or await asyncio.gather(*asking)
    assert len(store.trips) == 2
    await trips.finish()
