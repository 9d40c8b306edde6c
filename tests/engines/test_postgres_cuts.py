"""The connection cut at every step of every write, on the way there and on the way back.

Whatever is cut, a call must answer with the truth: nothing is lost, nothing is there twice, nothing is held by nobody.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

from qo.engines.postgres import PostgresEngine
from qo.errors import Conflict, OutcomeUnknown
from qo.model import ANY, NEW, Change, Status, Task, archive, cancel, complete, fail, release, replay
from qo.testing.samples import claim_one, claim_request, new, task_id
from tests.servers.postgres import PostgresServer, url
from tests.servers.postgres_proxy import cut_everywhere, nothing

__all__ = ["url"]  # a fixture


async def one(engine: PostgresEngine, turn: int) -> None:
    await engine.add([new(turn)])


async def test_an_add_is_answered_truthfully(postgres: PostgresServer, url: str) -> None:
    async def step(engine: PostgresEngine, turn: int) -> None:
        assert await engine.add([new(turn), new(1_000_000 + turn)]) == [
            (task_id(turn), True),
            (task_id(1_000_000 + turn), True),
        ]

    await cut_everywhere(postgres, url, nothing, step)


async def test_an_add_of_known_and_new_tasks_is_answered_truthfully(postgres: PostgresServer, url: str) -> None:
    async def step(engine: PostgresEngine, turn: int) -> None:
        added = await engine.add([new(1_000_000), new(turn)])
        assert added == [(task_id(1_000_000), turn == 0), (task_id(turn), True)]

    await cut_everywhere(postgres, url, nothing, step)


async def test_a_claim_is_answered_truthfully(postgres: PostgresServer, url: str) -> None:
    held = {}

    async def step(engine: PostgresEngine, turn: int) -> None:
        tasks = await engine.claim(claim_request(limit=1))
        assert [(task.id, task.attempt) for task in tasks] == [(task_id(turn), 1)]
        held[turn] = tasks[0]

    async def check(engine: PostgresEngine, turn: int) -> None:
        assert await engine.apply([complete(held[turn])]) == [True]

    await cut_everywhere(postgres, url, one, step, check)


@pytest.mark.parametrize("ordinary", [True, False])
async def test_a_settlement_is_answered_truthfully(postgres: PostgresServer, url: str, *, ordinary: bool) -> None:
    held = {}

    async def hold(engine: PostgresEngine, turn: int) -> None:
        await engine.add([new(turn)])
        (held[turn],) = await engine.claim(claim_request(limit=1))

    async def step(engine: PostgresEngine, turn: int) -> None:
        change = complete(held[turn], b"1" if ordinary else b"2")
        if not ordinary:
            change = type(change)(id=change.id, guard=change.guard, to=change.to, lease_id=change.lease_id)
        assert await engine.apply([change]) == [True]

    async def check(engine: PostgresEngine, turn: int) -> None:
        statuses = [event.status for event in await engine.history(task_id(turn))]
        assert statuses == [Status.PENDING, Status.RUNNING, Status.COMPLETED]

    await cut_everywhere(postgres, url, hold, step, check)


# --- changes without a lease: after a lost connection the outcome may be unknown, but is never wrong


async def _answer(engine: PostgresEngine, change: Change) -> bool | None:
    try:
        (landed,) = await engine.apply([change])
    except OutcomeUnknown:
        return None
    return landed


async def test_a_change_without_a_lease_is_applied_once(postgres: PostgresServer, url: str) -> None:
    answers: list[bool | None] = []

    async def step(engine: PostgresEngine, turn: int) -> None:
        for change in (cancel, replay, cancel, archive):
            answers.append(await _answer(engine, change(task_id(turn))))
            assert answers[-1] is not False  # no other process could have caused a refusal

    async def check(engine: PostgresEngine, turn: int) -> None:
        statuses = [event.status.value for event in await engine.history(task_id(turn))]
        assert statuses == ["pending", "cancelled", "pending", "cancelled", "archived"]  # each happened once

    await cut_everywhere(postgres, url, one, step, check)
    assert answers.count(None) * 4 < len(
        answers
    )  # one of four changes loses its connection, half of these before the commit


async def test_a_refused_change_is_never_reported_as_applied(postgres: PostgresServer, url: str) -> None:
    async def ended(engine: PostgresEngine, turn: int) -> None:
        await engine.add([new(turn)])
        assert await engine.apply([complete(await claim_one(engine), b"1")]) == [True]

    async def step(engine: PostgresEngine, turn: int) -> None:
        assert await _answer(engine, cancel(task_id(turn))) in (False, None)

    async def check(engine: PostgresEngine, turn: int) -> None:
        (task,) = await engine.get([task_id(turn)])
        assert task is not None and task.status is Status.COMPLETED

    await cut_everywhere(postgres, url, ended, step, check)


@pytest.mark.parametrize("how", [release, lambda task: fail(task, "no")])
async def test_failures_and_releases_are_answered_truthfully(
    postgres: PostgresServer, url: str, how: Callable[[Task], Change]
) -> None:
    held = {}

    async def hold(engine: PostgresEngine, turn: int) -> None:
        await engine.add([new(turn)])
        (held[turn],) = await engine.claim(claim_request(types=("t",), limit=1))

    async def step(engine: PostgresEngine, turn: int) -> None:
        assert await engine.apply([how(held[turn])]) == [True]

    async def check(engine: PostgresEngine, turn: int) -> None:
        (task,) = await engine.get([task_id(turn)])
        assert task is not None and task.version == 3
        if task.status is Status.PENDING:  # so that the next turn does not claim it
            assert await engine.apply([cancel(task.id)]) == [True]

    await cut_everywhere(postgres, url, hold, step, check)


async def test_a_deletion_is_answered_truthfully(postgres: PostgresServer, url: str) -> None:
    async def ended(engine: PostgresEngine, turn: int) -> None:
        await engine.add([new(turn), new(1_000_000 + turn)])
        assert await engine.apply([cancel(task_id(turn))]) == [True]

    async def step(engine: PostgresEngine, turn: int) -> None:
        ids = [task_id(turn), task_id(1_000_000 + turn)]
        with suppress(OutcomeUnknown):
            assert await engine.delete(ids) == [True, False]

    async def check(engine: PostgresEngine, turn: int) -> None:
        gone, there = await engine.get([task_id(turn), task_id(1_000_000 + turn)])
        assert gone is None and there is not None

    await cut_everywhere(postgres, url, ended, step, check)


async def test_a_write_of_a_note_is_answered_truthfully(postgres: PostgresServer, url: str) -> None:
    versions = {}

    async def step(engine: PostgresEngine, turn: int) -> None:
        name, version = f"n{turn}", ""
        for data, expected in ((b"1", NEW), (b"2", "the last"), (b"3", ANY)):
            try:
                version = await engine.write_note(name, data, expected=version if expected == "the last" else expected)
            except OutcomeUnknown:
                note = await engine.read_note(name)
                assert note is not None
                version = note.version
        with pytest.raises(Conflict):
            await _never_unknown(engine, name)
        versions[turn] = version

    async def check(engine: PostgresEngine, turn: int) -> None:
        assert await engine.read_note(f"n{turn}") == (f"n{turn}", b"3", versions[turn])

    await cut_everywhere(postgres, url, nothing, step, check)


async def test_a_dropped_note_is_gone(postgres: PostgresServer, url: str) -> None:
    async def write(engine: PostgresEngine, turn: int) -> None:
        await engine.write_note(f"n{turn}", b"1", expected=NEW)

    async def step(engine: PostgresEngine, turn: int) -> None:
        await engine.drop_note(f"n{turn}")

    async def check(engine: PostgresEngine, turn: int) -> None:
        assert await engine.read_note(f"n{turn}") is None

    await cut_everywhere(postgres, url, write, step, check)


async def _never_unknown(engine: PostgresEngine, name: str) -> None:
    """A conflict may be reported as unknown after a lost connection; a repeat reports the conflict."""
    try:
        await engine.write_note(name, b"4", expected=NEW)
    except OutcomeUnknown:
        await engine.write_note(name, b"4", expected=NEW)
