"""Patchsets of the tables: recorded on one replica, applied and merged on others."""

import random
from functools import partial
from itertools import pairwise

import apsw
import pytest

from qo.errors import StorageError
from qo.model import Filter, Task, complete
from qo.sqlite_tables.patchsets import (
    LOCAL,
    RECORDED,
    ChangeRecorder,
    PatchsetRefused,
    apply_patchset,
    merge_patchsets,
)
from qo.sqlite_tables.rows import BadRow
from qo.sqlite_tables.table import SqliteTable
from qo.testing.clock import ManualClock
from qo.testing.histories import random_history
from qo.testing.samples import claim_request, new, task_id
from tests.sqlite_tables.replicas import Patch, Replicas, TableReplica

Pair = tuple[TableReplica, TableReplica]


@pytest.fixture
def pair() -> Pair:
    return TableReplica(), TableReplica()


def claimed(replica: TableReplica, now: float = 10.0, **fields: object) -> tuple[list[Task], Patch]:
    return replica.write(lambda table: table.claim(claim_request(**fields), now))


def add_finished(pair: Pair, *types: str) -> None:
    """One finished task of each type, on both replicas. Its name is its type."""
    leader, follower = pair
    follower.apply(leader.write(lambda table: table.add([new(type_, type=type_) for type_ in types], 1.0))[1])
    tasks, patch = claimed(leader)
    follower.apply(patch)
    follower.apply(leader.write(lambda table: table.apply([complete(task) for task in tasks], 11.0))[1])


def test_every_table_is_recorded_or_local() -> None:
    names = TableReplica().db.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    assert {name for (name,) in names} == {*RECORDED, *LOCAL}


def test_every_recorded_table_has_a_primary_key() -> None:
    """The session extension ignores tables without one."""
    db = TableReplica().db
    for table in RECORDED:
        assert db.execute("SELECT sum(pk) FROM pragma_table_info(?)", (table,)).get, table


def test_every_recorded_table_has_a_column_that_is_not_in_its_key() -> None:
    """SQLite merges a deletion and an insertion of one row to an update, which is damaged if it updates nothing."""
    db = TableReplica().db
    for table in RECORDED:
        assert db.execute("SELECT count(*) FROM pragma_table_info(?) WHERE pk = 0", (table,)).get, table


@pytest.mark.parametrize("seed", range(3))
async def test_replicas_are_equal_after_a_random_history(seed: int) -> None:
    clock = ManualClock()
    engine = Replicas(clock, seed)
    await random_history(engine, clock, seed)
    first, second = engine.replicas
    assert first.rows() == second.rows()


@pytest.mark.parametrize("seed", range(3, 5))
async def test_merged_patchsets_equal_the_sequence(seed: int) -> None:
    clock = ManualClock()
    engine = Replicas(clock, seed)
    await random_history(engine, clock, seed)
    patchsets, dice = [patch.patchset for patch in engine.patches], random.Random(seed)
    cuts = [0, *sorted(dice.sample(range(1, len(patchsets)), 5)), len(patchsets)]
    blocks = [merge_patchsets(patchsets[start:end]) for start, end in pairwise(cuts)]
    for merged in ([merge_patchsets(patchsets)], [merge_patchsets(blocks)], blocks):
        replica = TableReplica()
        for patchset in merged:
            replica.apply(Patch(patchset, removes_lanes=True))
        assert replica.rows() == engine.replicas[0].rows()


def test_a_transaction_that_changes_nothing_has_no_patchset(pair: Pair) -> None:
    leader, _ = pair
    assert claimed(leader)[1].patchset == b""
    leader.write(lambda table: table.add([new()], 1.0))
    assert leader.write(lambda table: table.add([new()], 2.0))[1].patchset == b""


def test_a_call_that_fails_alone_leaves_nothing_in_the_patchset(pair: Pair) -> None:
    leader, follower = pair

    def fails(table: SqliteTable) -> None:
        table.add([new("failed", type="other")], 1.0)
        raise StorageError("no")

    with pytest.raises(StorageError):
        leader.write(fails)
    _, patch = leader.write(lambda table: table.add([new()], 1.0))
    follower.apply(patch)
    assert follower.rows() == leader.rows()
    assert [task.id for task in claimed(follower)[0]] == [task_id(0)]


def test_a_claim_after_a_foreign_record_sees_its_lanes(pair: Pair) -> None:
    leader, follower = pair
    follower.apply(leader.write(lambda table: table.add([new(0)], 1.0))[1])
    tasks, patch = claimed(follower)  # the follower caches lanes and their heads
    leader.apply(patch)
    assert [task.id for task in tasks] == [task_id(0)]
    _, patch = leader.write(lambda table: table.add([new(1), new(2, type="other", priority=0)], 11.0))
    follower.apply(patch)
    _, patch = follower.write(lambda table: table.add([new(3, type="third")], 12.0))
    leader.apply(patch)
    assert follower.rows() == leader.rows(), "each lane and task has its own number"
    assert [task.id for task in claimed(follower, 13.0)[0]] == [task_id(2), task_id(1), task_id(3)]


def test_a_follower_claims_what_the_leader_would_after_lanes_were_removed(pair: Pair) -> None:
    leader, follower = pair
    add_finished(pair, "a", "b", "c")
    for replica in pair:
        assert claimed(replica, 12.0)[0] == []  # both cache the heads of all lanes
    _, patch = leader.write(lambda table: table.delete([task_id("a"), task_id("b")]))
    assert patch.removes_lanes
    follower.apply(patch)
    follower.apply(leader.write(lambda table: table.add([new(1, type="a"), new(2, type="d")], 13.0))[1])
    leader.apply(follower.write(lambda table: table.add([new(3, type="b")], 14.0))[1])
    assert follower.rows() == leader.rows(), "a removed lane got a new number on both"
    assert [task.id for task in claimed(follower, 20.0)[0]] == [task.id for task in claimed(leader, 20.0)[0]]


def test_an_id_deleted_and_added_again_in_one_block_applies(pair: Pair) -> None:
    """The new row may come first in the patchset, while the old one still has the id."""
    leader, follower = pair
    add_finished(pair, *"abcdefgh")
    blocks = []
    for n, name in enumerate("abc"):
        again = new(name, type=name, payload=b"%d" % n)
        blocks.append(leader.write(partial(SqliteTable.delete, ids=[again.id]))[1].patchset)
        blocks.append(leader.write(partial(SqliteTable.add, tasks=[again], now=20.0))[1].patchset)
    follower.apply(Patch(merge_patchsets(blocks), removes_lanes=True))
    assert follower.rows() == leader.rows()
    (task,) = follower.reader.get([task_id("c")])
    assert task is not None and task.payload == b"2", "the row is the new one"


def test_followers_of_a_key_that_exchange_their_tasks_apply(pair: Pair) -> None:
    """`followers.last` is unique, and its rows change places within one patchset."""
    leader, follower = pair
    orders = ["abcd", "badc", "bcda", "dcab"]
    with_rows = "INSERT INTO followers (first, last) VALUES " + ", ".join("(?, ?)" for _ in range(4))
    for order in orders:
        recorder = ChangeRecorder(leader.db)
        recorder.start()
        leader.execute("DELETE FROM followers WHERE true")
        leader.db.execute(with_rows, [value for pair in zip("abcd", order, strict=True) for value in pair])
        follower.apply(Patch(recorder.take(), removes_lanes=False))
        assert follower.rows() == leader.rows()


def test_tasks_that_are_set_aside_are_set_aside_on_every_replica(pair: Pair) -> None:
    leader, follower = pair
    leader.execute("DELETE FROM tally")  # compiled without a recorder, which would not see all rows go
    follower.apply(leader.write(lambda table: table.add([new(n, type=f"t{n}") for n in range(3)], 1.0))[1])
    _, patch = leader.write(lambda table: table.set_aside([BadRow(2, task_id(1), "a bad row")]))
    follower.apply(patch)
    assert follower.rows() == leader.rows()
    assert [task.id for task in claimed(follower)[0]] == [task_id(0), task_id(2)]


def test_a_patchset_of_a_wider_schema_is_skipped_by_sqlite(pair: Pair) -> None:
    """So the versions of the schemas must be compared first. A test of the replica shows that they are."""
    leader, follower = pair
    leader.execute("ALTER TABLE tasks ADD COLUMN later TEXT")
    _, patch = leader.write(lambda table: table.add([new()], 1.0))
    with follower.db:
        apply_patchset(follower.db, patch.patchset)
    assert follower.reader.find(Filter(), 9, None, 2.0) == []


def test_a_patchset_for_another_table_is_refused(pair: Pair) -> None:
    _, follower = pair
    other = apsw.Connection(":memory:")
    for name in ("formats", "lane_removals", "tasks2"):
        other.execute(f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, since INTEGER, qo TEXT)")
        session = apsw.Session(other, "main")
        session.attach(name)
        other.execute(f"INSERT INTO {name} VALUES (99, 99, 'x')")
        with pytest.raises(PatchsetRefused, match=f"table '{name}' is not replicated"):
            follower.apply(Patch(session.patchset(), removes_lanes=False))
    assert not follower.db.in_transaction


def test_a_patchset_that_does_not_fit_is_refused_and_changes_nothing(pair: Pair) -> None:
    leader, follower = pair
    _, added = leader.write(lambda table: table.add([new(0), new(1)], 1.0))
    tasks, taken = claimed(leader)
    with pytest.raises(PatchsetRefused, match="the row does not exist"):
        follower.apply(taken)
    follower.apply(added)
    before = follower.rows()
    with pytest.raises(PatchsetRefused, match="the row exists"):
        follower.apply(added)
    assert follower.rows() == before
    follower.apply(taken)
    assert follower.rows() == leader.rows() and len(tasks) == 2


def test_a_damaged_patchset_neither_crashes_the_process_nor_changes_another_table(pair: Pair) -> None:
    leader, follower = pair
    _, patch = leader.write(lambda table: table.add([new(n) for n in range(5)], 1.0))
    dice, whole = random.Random(7), patch.patchset
    kept = follower.db.execute("SELECT * FROM formats").fetchall()
    for _ in range(150):
        damaged = bytearray(whole[: dice.choice([len(whole), dice.randrange(len(whole))])])
        for place in dice.sample(range(len(damaged)), min(len(damaged), dice.choice([1, 3]))):
            damaged[place] ^= 1 << dice.randrange(8)
        follower.execute("BEGIN")
        try:
            apply_patchset(follower.db, bytes(damaged))
            merge_patchsets([whole, bytes(damaged)])
        except PatchsetRefused:
            pass
        assert follower.db.execute("SELECT * FROM formats").fetchall() == kept
        follower.execute("ROLLBACK")
