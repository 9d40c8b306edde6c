"""Which tasks of a replica become a cold segment, and what may change between the reading and the moving of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from qo.engines.replicated_log.replica import Replica
from qo.model import Change, Status, cancel, complete, fail, replay_finished, reschedule, set_priority
from qo.sqlite_tables.segment_drafts import deep_tasks, old_tasks, segment_problem
from qo.sqlite_tables.segments import SegmentDraft
from qo.sqlite_tables.table import SqliteTable
from qo.testing.samples import claim_request, new, task_id
from tests.engines.log_replicas import open_replica, replica, temp, write

__all__ = ["open_replica", "replica", "temp"]  # fixtures

NAME = "0000000000000009-" + "a" * 32
NOW = 10.0
COLD = 5  # the first task that is deep in the lane
Choice = Callable[[apsw.Connection], Sequence[int]]


def deep(db: apsw.Connection, *, size: int = 4, max_bytes: int = 10**6) -> list[int]:
    chosen = deep_tasks(db, hot=2, kept=4, size=size, max_bytes=max_bytes, segments=1)
    return [n for numbers in chosen for n in numbers]


def old(db: apsw.Connection, *, size: int = 4, max_bytes: int = 10**6) -> list[int]:
    return [
        n for numbers in old_tasks(db, before=NOW + 100, size=size, max_bytes=max_bytes, segments=1) for n in numbers
    ]


def fill(replica: Replica, names: Sequence[int] = range(1, 9), **fields: Any) -> None:
    for name in names:
        write(replica, partial(SqliteTable.add, tasks=[new(name, **fields)], now=float(name)))


def finish(replica: Replica) -> None:
    for task in lease(replica):
        change(replica, complete(task))


def lease(replica: Replica) -> list[Any]:
    return write(replica, lambda table: table.claim(claim_request(limit=100), NOW))[0]


def change(replica: Replica, *changes: Change) -> None:
    assert all(write(replica, lambda table: table.apply(changes, NOW))[0])


def delete(replica: Replica, *names: int) -> None:
    change(replica, *(cancel(task_id(name)) for name in names))
    assert all(write(replica, lambda table: table.delete([task_id(name) for name in names]))[0])


def freeze(replica: Replica, draft: SegmentDraft) -> bool:
    return write(replica, lambda table: table.freeze(draft, NAME))[0]


def drafted(replica: Replica, choose: Choice = deep) -> SegmentDraft:
    draft = replica.draft_segment(choose)
    assert draft is not None
    return draft


CHANGES: dict[str, Callable[[Replica], object]] = {
    "cancelled": lambda replica: change(replica, cancel(task_id(COLD))),
    "rescheduled": lambda replica: change(replica, reschedule(task_id(COLD), NOW + 5)),
    "of another lane": lambda replica: change(replica, set_priority(task_id(COLD), 7)),
    "running": lease,
    "deleted": lambda replica: delete(replica, COLD),
}


@pytest.mark.parametrize("happens", CHANGES)
def test_tasks_are_chosen_and_read_in_one_snapshot(replica: Replica, happens: str) -> None:
    fill(replica)

    def choose(db: apsw.Connection) -> list[int]:
        chosen = deep(db)
        CHANGES[happens](replica)
        return chosen

    draft = drafted(replica, choose)
    assert {state.status for state in draft.states} == {"pending"} and draft.lane is not None
    assert not freeze(replica, draft)


@pytest.mark.parametrize("happens", CHANGES)
def test_tasks_of_different_kinds_become_no_segment(replica: Replica, happens: str) -> None:
    fill(replica)
    CHANGES[happens](replica)
    assert replica.draft_segment(lambda _: [*range(COLD, COLD + 4)]) is None


def test_a_waiting_task_and_finished_ones_become_no_segment(replica: Replica) -> None:
    fill(replica)
    finish(replica)
    assert drafted(replica, old).lane is None
    change(replica, replay_finished(task_id(2)))
    assert replica.draft_segment(lambda _: [*range(1, 5)]) is None


def test_a_draft_of_tasks_of_different_kinds_is_refused(replica: Replica) -> None:
    fill(replica)
    draft = drafted(replica)
    change(replica, cancel(task_id(COLD)))
    states = {
        state._replace(version=2, status=Status.CANCELLED.value, ready=None)
        for state in draft.states
        if state.n == COLD
    }
    mixed = replace(draft, states=frozenset({state for state in draft.states if state.n != COLD} | states))
    assert not freeze(replica, mixed)
    assert not freeze(replica, replace(mixed, lane=None))


def test_a_new_task_with_the_number_of_a_deleted_one_is_not_moved(replica: Replica) -> None:
    fill(replica)
    draft = drafted(replica)
    delete(replica, *range(5, 9))
    fill(replica, range(15, 19))
    assert not freeze(replica, draft)
    found = replica.read(lambda reader: reader.get([task_id(name) for name in range(15, 19)]))
    assert None not in found


def test_unchanged_tasks_are_moved(replica: Replica) -> None:
    fill(replica)
    assert freeze(replica, drafted(replica))
    (segment,) = replica.read(lambda reader: reader.segments())
    assert (segment.tasks, segment.last, segment.oldest, segment.newest) == (4, 8, 5.0, 8.0)


def chosen(replica: Replica, choose: Choice) -> list[int]:
    return replica.choose(lambda db: [*choose(db)])


def test_no_segment_has_fewer_tasks_than_it_could(replica: Replica) -> None:
    fill(replica, range(1, 8))
    assert chosen(replica, deep) == []
    fill(replica, [8])
    assert chosen(replica, deep) == [5, 6, 7, 8]
    assert chosen(replica, partial(deep, size=5, max_bytes=1500)) == [5, 6]


def test_a_waiting_task_with_an_idempotency_key_stays_in_the_tables(replica: Replica) -> None:
    fill(replica)
    fill(replica, range(9, 13), idempotency_key="a key")
    assert chosen(replica, partial(deep, size=5)) == []
    fill(replica, [13])
    assert chosen(replica, partial(deep, size=5)) == [5, 6, 7, 8, 13]


def test_the_size_of_a_segment_includes_errors_and_logs(replica: Replica) -> None:
    fill(replica)
    for task in lease(replica):
        change(replica, fail(task, "e" * 4000, log="\N{SNOWMAN}" * 1000))
    for limit, size in ((12_000, 1), (30_000, 2)):
        numbers = chosen(replica, partial(old, size=8, max_bytes=limit))
        assert len(numbers) == size


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE segments SET lane = NULL, rank = NULL", "its row does not agree with its tasks"),
        ("UPDATE segments SET newest = newest - 1", "its row does not agree with its tasks"),
        ("UPDATE cold_counts SET count = count - 1", "its counts do not agree with its tasks"),
        ("DELETE FROM cold_ids", "the hashes of its ids are not in the tables"),
        ("UPDATE tasks SET n = 8 WHERE n = 1", "some of its tasks are in the tables too"),
        ("SELECT 1", ""),
    ],
)
def test_a_segment_is_compared_with_the_tables(replica: Replica, statement: str, problem: str) -> None:
    fill(replica)
    draft = drafted(replica)
    assert freeze(replica, draft)
    write(replica, lambda table: table.db.execute(statement).fetchall())
    (segment,) = replica.read(lambda reader: reader.segments())
    assert replica.choose(lambda db: segment_problem(db, segment, draft.body)) == problem
