"""Tasks in."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from qo import tracing
from qo.client.describe import describe
from qo.client.handles import Producer, Submitted
from qo.client.looking import Looking
from qo.codec import encode_value, same_value
from qo.engine import get_in_steps
from qo.errors import KeyReused
from qo.model import Added, NewTask, Task, check_depth, check_name, check_size

Submissions: TypeAlias = list[Submitted]  # inside the class `list` is a method

BULK = 1000  # tasks a trip when many are submitted at once


class Submitting(Looking):  # what it hands out looks for its result
    async def enqueue(self, type: str, payload: object = None, *, connection: Any = None, **options: Any) -> Submitted:
        """Submit one task; returns when the store has it. Options: see `describe`.

        With a psycopg `connection` of your own, it is part of your transaction: it exists if and only if you commit.
        """
        return await self.submit(self.new_task(type, encode_value(payload), **options), connection=connection)

    async def submit(self, new: NewTask, *, connection: Any = None) -> Submitted:
        check_size("payload", new.payload, self.payload_limit)
        check_depth("payload", new.payload)
        await self.live_types.check((new,))
        with tracing.submitting((new,)) as span:
            (new,) = span.marked((new,))
            added = await (self._adding.commit(new) if connection is None else self._add_on(connection, new))
        if connection is None:  # else the task exists only if the caller commits
            self.transitions.queued((new,), (added,))
        if not added.new and new.idempotency_key is not None:
            (existing,) = await self.engine.get([added.id])
            if existing is not None:
                _check_repeat(new, existing)
        return Submitted(added.id, added.new, self)

    async def _add_on(self, connection: Any, new: NewTask) -> Added:
        (added,) = await self.engine.add_on(connection, [new])
        return added

    async def submit_many(self, tasks: Sequence[NewTask]) -> Submissions:
        """Submit many tasks in as few trips as the store allows. Of one id, the first is taken.

        KeyReused: some keys belong to tasks with other payloads. The other tasks are stored.
        """
        check_size("payload", max((task.payload for task in tasks), key=len, default=b""), self.payload_limit)
        first: dict[str, NewTask] = {}
        for task in tasks:
            check_depth("payload", task.payload)
            if task.idempotency_key is not None and task.id in first:
                _check_repeat(task, first[task.id])
            first.setdefault(task.id, task)
        await self.live_types.check(tasks)
        answers: list[Added] = []
        with tracing.submitting([*first.values()]) as span:
            distinct = span.marked([*first.values()])
            for start in range(0, len(distinct), BULK):
                answers += await self.engine.add(distinct[start : start + BULK])
        self.transitions.queued(distinct, answers)
        last = dict(zip(first, answers, strict=True))
        repeated = [task for task in first.values() if task.idempotency_key and not last[task.id].new]
        await self._check_repeats(repeated, [last[new.id].id for new in repeated])
        fresh = {task_id: added.new for task_id, added in last.items()}
        return [Submitted(last[task.id].id, fresh.pop(task.id, False), self) for task in tasks]

    async def _check_repeats(self, repeated: Sequence[NewTask], ids: Sequence[str]) -> None:
        """Raises KeyReused. Only a few of the stored payloads are in memory at once."""
        news = iter(repeated)
        async for some in get_in_steps(self.engine, ids):
            for existing, new in zip(some, news, strict=False):
                if existing is not None:
                    _check_repeat(new, existing)

    def new_task(self, type: str, payload: bytes, **options: Any) -> NewTask:
        """A checked description of a task, ready to submit. Options: see `describe`."""
        return describe(self.settings, type, payload, clock=self._clock, **options)

    async def producer(self, name: str) -> Producer:
        """A shorthand for submitting to one queue."""
        return Producer(self, check_name("queue", name))


def _check_repeat(new: NewTask, existing: Task | NewTask) -> None:
    """A submission under a key that is taken gets the first task only if it asks for the same."""
    if not same_value(new.payload, existing.payload):
        raise KeyReused(
            f"idempotency key {new.idempotency_key!r} of {new.type} in queue {new.queue} belongs to task {existing.id},"
            " which has another payload; choose another key, or submit the payload of that task",
            task_id=existing.id,
        )
