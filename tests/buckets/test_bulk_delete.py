"""Bulk deletes: concurrent deletions share a request, and each caller gets the result for its own key."""

import asyncio

from qo.bucket import ANY
from qo.buckets import open_bucket
from qo.buckets.bulk_delete import BulkDelete
from qo.errors import OutcomeUnknown, StorageError
from qo.testing import Faults, S3Server
from tests.conditions import forever

TIMEOUT = 10.0  # seconds until a test gives up


class Store:
    """Responds to bulk deletes while the gate is open, and records the requests in order."""

    def __init__(self, *, knows_how: bool = True, refuses: str = "") -> None:
        self.knows_how, self.refuses = knows_how, refuses
        self.asked: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def remove(self, key: str) -> None:
        await self.remove_all([key])

    async def remove_all(self, keys: list[str]) -> None:
        self.asked.append(keys)
        if len(keys) > 1:
            await self.gate.wait()
        if self.refuses in keys:
            raise StorageError(f"{self.refuses} may not be removed")
        if len(keys) > 1 and not self.knows_how:
            raise OutcomeUnknown("501 Not Implemented")


def removals(store: Store) -> BulkDelete:
    return BulkDelete(store.remove, store.remove_all)


async def remove(removals: BulkDelete, keys: str) -> list[BaseException | None]:
    async with asyncio.timeout(TIMEOUT):
        return await asyncio.gather(*(removals.remove(key) for key in keys), return_exceptions=True)


async def test_deletions_during_a_request_share_the_next_one() -> None:
    store = Store()
    assert await remove(removals(store), "abcdefg") == [None] * 7
    assert store.asked == [["a"], ["b"], [*"cdefg"]]


async def test_successive_deletions_are_single_requests() -> None:
    store = Store()
    several = removals(store)
    for key in "abc":
        await several.remove(key)
    assert store.asked == [["a"], ["b"], ["c"]]


async def test_a_refusal_goes_to_its_caller_alone() -> None:
    store = Store(refuses="d")
    answers = await remove(removals(store), "abcde")
    assert [str(answer) for answer in answers if answer] == ["d may not be removed"]
    assert answers[3] is not None


async def test_bulk_deletes_stop_if_the_store_does_not_support_them() -> None:
    store = Store(knows_how=False)
    several = removals(store)
    for _ in range(5):
        assert await remove(several, "abcd") == [None] * 4
    assert sum(len(keys) > 1 for keys in store.asked) == 3


async def test_bulk_deletes_stop_also_if_two_requests_fail_at_once() -> None:
    store = Store(knows_how=False)
    several = removals(store)
    for _ in range(2):
        await remove(several, "wxyz")
    store.gate.clear()
    callers = []
    for keys in ("abcd", "efgh"):  # the first keys are deleted singly; the others share a request, which is held
        callers += [asyncio.create_task(several.remove(key)) for key in keys]
        async with asyncio.timeout(TIMEOUT):
            while store.asked[-1][-1] != keys[-1]:
                await asyncio.sleep(0)
    assert [len(keys) > 1 for keys in store.asked].count(True) == 4
    store.gate.set()
    await asyncio.gather(*callers)
    for _ in range(2):
        await remove(several, "wxyz")
    assert [len(keys) > 1 for keys in store.asked].count(True) == 4


async def test_an_error_of_a_single_deletion_does_not_stop_bulk_deletes() -> None:
    store = Store(refuses="d")
    several = removals(store)
    for _ in range(5):
        await remove(several, "abcde")
    assert sum(len(keys) > 1 for keys in store.asked) == 5


async def test_a_cancelled_caller_does_not_cancel_others() -> None:
    store = Store()
    store.gate.clear()
    several = removals(store)
    callers = [asyncio.create_task(several.remove(key)) for key in "abcd"]
    await asyncio.sleep(0)
    callers[0].cancel()
    callers[2].cancel()
    await asyncio.sleep(0)
    store.gate.set()
    async with asyncio.timeout(TIMEOUT):
        answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["CancelledError", "NoneType", "CancelledError", "NoneType"]


def test_a_stopped_event_loop_does_not_block_another() -> None:
    store: Store | None = None
    several = BulkDelete(
        lambda key: store.remove(key) if store else forever(),
        lambda keys: store.remove_all(keys) if store else forever(),
    )
    with asyncio.Runner() as still:
        still.run(asyncio.wait([still.get_loop().create_task(several.remove(key)) for key in "abc"], timeout=0))
        store = Store()
        with asyncio.Runner() as other:
            assert other.run(remove(several, "abc")) == [None] * 3


async def test_keys_reported_as_deleted_are_gone_over_a_faulty_connection() -> None:
    async with S3Server() as server:
        bucket = open_bucket(server.url)
        names = [f"d/{n}" for n in range(200)]
        await asyncio.gather(*(bucket.put(name, b"", expected=ANY) for name in names))
        server.faults = Faults(3, lost_request=0.2, lost_response=0.2, refused=0.2)
        answers = await asyncio.gather(*(bucket.delete(name) for name in names), return_exceptions=True)
        server.faults = Faults(0)
        left = {key async for key in bucket.keys("d/")}
        gone = {name for name, answer in zip(names, answers, strict=True) if answer is None}
        assert all(answer is None or isinstance(answer, StorageError) for answer in answers)
        assert gone
        assert not left & gone


async def test_a_hundred_keys_cost_a_few_requests() -> None:
    async with S3Server() as server:
        bucket = open_bucket(server.url)
        await bucket.get("warm")
        before = server.requests
        await asyncio.gather(*(bucket.delete(f"d/{n}") for n in range(100)))
        assert server.requests - before <= 5
