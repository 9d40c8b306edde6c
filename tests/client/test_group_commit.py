"""Group commit: items that arrive during a write share the next one, and no item waits for a timer."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from qo.errors import ObjectTooLarge, OutcomeUnknown
from qo.group_commit import GroupCommit


class Item(NamedTuple):
    id: str
    bad: bool = False


class Store:
    """Records every batch; each waits at the gate. A bad item fails its batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()

    async def write(self, items: Sequence[Item]) -> list[str]:
        self.batches.append([item.id for item in items])
        await self.gate.wait()
        if any(item.bad for item in items):
            raise ValueError("a bad item in the batch")
        return [f"done {item.id}" for item in items]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_item_is_written_immediately_and_alone() -> None:
    store = Store()
    group = GroupCommit(store.write)
    commits = asyncio.create_task(group.commit(Item("a")))
    await turns()
    assert store.batches == [["a"]]
    store.gate.set()
    assert await commits == "done a"


async def test_items_that_arrive_during_a_write_share_the_next() -> None:
    store = Store()
    group = GroupCommit(store.write)
    first = asyncio.create_task(group.commit(Item("first")))
    await turns()
    rest = [asyncio.create_task(group.commit(Item(f"{n}"))) for n in range(100)]
    await turns()
    assert store.batches == [["first"]]
    store.gate.set()
    assert await asyncio.gather(first, *rest) == ["done first", *(f"done {n}" for n in range(100))]
    assert store.batches == [["first"], [f"{n}" for n in range(100)]]


async def test_simultaneous_callers_share_one_write() -> None:
    store = Store()
    store.gate.set()
    group = GroupCommit(store.write)
    await asyncio.gather(*(group.commit(Item(f"{n}")) for n in range(50)))
    assert len(store.batches) == 1


async def test_a_batch_has_at_most_max_batch_size_items() -> None:
    store = Store()
    store.gate.set()
    group = GroupCommit(store.write, max_batch_size=4)
    await asyncio.gather(*(group.commit(Item(f"{n}")) for n in range(10)))
    assert [len(batch) for batch in store.batches] == [4, 4, 2]


async def test_a_failing_write_fails_only_its_own_batch() -> None:
    store = Store()
    group = GroupCommit(store.write, max_batch_size=2)
    items = [Item("a"), Item("b", bad=True), Item("c"), Item("d")]
    commits = [asyncio.create_task(group.commit(item)) for item in items]
    store.gate.set()
    answers = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(answer) for answer in answers[:2]] == [ValueError, ValueError]
    assert answers[2:] == ["done c", "done d"]
    assert await group.commit(Item("e")) == "done e"


async def test_a_repeated_id_goes_to_the_next_batch_in_order() -> None:
    store = Store()
    store.gate.set()
    group = GroupCommit(store.write)
    await asyncio.gather(*(group.commit(Item(name)) for name in ("a", "b", "a", "a", "c")))
    assert store.batches == [["a", "b", "c"], ["a"], ["a"]]


async def test_an_item_is_not_written_if_its_caller_is_cancelled_before() -> None:
    store = Store()
    group = GroupCommit(store.write)
    first = asyncio.create_task(group.commit(Item("first")))
    await turns()
    gone, stays = (asyncio.create_task(group.commit(Item(name))) for name in ("gone", "stays"))
    await turns()
    gone.cancel()
    await turns()
    store.gate.set()
    assert [await first, await stays] == ["done first", "done stays"]
    assert store.batches == [["first"], ["stays"]]


@pytest.mark.parametrize("bad", [False, True])
async def test_a_caller_cancelled_during_its_write_does_not_affect_the_others(*, bad: bool) -> None:
    store = Store()
    group = GroupCommit(store.write)
    gone, stays = (asyncio.create_task(group.commit(Item(name, bad=bad))) for name in ("gone", "stays"))
    await turns()
    gone.cancel()
    await turns()
    store.gate.set()
    (answer,) = await asyncio.gather(stays, return_exceptions=True)
    assert isinstance(answer, ValueError) if bad else answer == "done stays"
    assert gone.cancelled()
    assert store.batches == [["gone", "stays"]]


async def test_finish_waits_for_every_item() -> None:
    store = Store()
    group = GroupCommit(store.write)
    commits = [asyncio.create_task(group.commit(Item(name))) for name in ("a", "a", "b")]
    await turns()
    finishing = asyncio.create_task(group.finish())
    await turns()
    assert not finishing.done()
    store.gate.set()
    await finishing
    assert all(task.done() for task in commits) or await asyncio.gather(*commits)
    assert len(store.batches) == 2
    await group.finish()


class SmallStore:
    """Refuses a batch with a bad item because of its size, after it has stored the items before it."""

    def __init__(self) -> None:
        self.stored: list[str] = []

    async def write(self, items: Sequence[Item]) -> list[bool]:
        for place, item in enumerate(items):
            if item.bad and place:
                raise OutcomeUnknown("a part is stored") from ObjectTooLarge(item.id)
            if item.bad:
                raise ObjectTooLarge(item.id)
            self.stored.append(item.id)
        return [self.stored.count(item.id) == 1 for item in items]


async def _commit_all(group: GroupCommit[Item, bool], bad: str) -> list[bool | BaseException]:
    commits = (group.commit(Item(name, bad=name == bad)) for name in "abcd")
    return await asyncio.gather(*commits, return_exceptions=True)


async def test_only_the_caller_of_an_item_that_is_too_large_gets_an_error() -> None:
    """The first item is refused before anything is stored."""
    results = await _commit_all(GroupCommit(SmallStore().write), "a")
    assert isinstance(results[0], ObjectTooLarge) and results[1:] == [True] * 3


async def test_items_that_may_be_stored_are_written_again_only_if_that_is_safe() -> None:
    results = await _commit_all(GroupCommit(SmallStore().write), "c")
    assert [type(result) for result in results] == [OutcomeUnknown] * 4
    results = await _commit_all(GroupCommit(SmallStore().write, is_repeatable=True), "c")
    assert isinstance(results[2], ObjectTooLarge) and not any(isinstance(results[n], BaseException) for n in (0, 1, 3))
