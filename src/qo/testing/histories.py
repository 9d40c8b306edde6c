"""Random histories: an engine must return exactly what the pure table returns. The seed determines the history."""

import random

from msgspec.structs import replace

from qo.engine import Engine
from qo.model import (
    Change,
    Event,
    Filter,
    PendingKind,
    RetryPolicy,
    Status,
    Table,
    Task,
    after_error,
    amend,
    archive,
    cancel,
    complete,
    cursor,
    expire,
    fail,
    page_start,
    release,
    renew,
    replay,
    replay_finished,
    reschedule,
    retry_now,
    run_now,
    set_priority,
    withdraw,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_request, new, task_id

NAMES = range(15)


async def random_history(engine: Engine, clock: ManualClock, seed: int, *, steps: int = 80) -> None:
    """Run `steps` random calls on an empty engine. Compare each result, and after each call the state."""
    history = _History(engine, clock, random.Random(seed))  # noqa: S311 - repeatable random numbers
    for _ in range(steps):
        clock.advance(history.dice.choice([0.25, 1.5, 7.0]))  # so that many ranks are equal
        await history.step()
        await history.compare()


class _History:
    def __init__(self, engine: Engine, clock: ManualClock, dice: random.Random) -> None:
        self.engine, self.clock, self.dice, self.table = engine, clock, dice, Table()
        self.seen: list[Task] = []

    async def step(self) -> None:
        steps = [self.add, self.claim, self.claim, self.apply, self.apply, self.delete]
        await self.dice.choice(steps)()

    async def add(self) -> None:
        dice = self.dice
        shared = 8.0 * (self.clock.now // 8 + 1)  # shared by several batches
        batch = [
            new(
                n,
                queue=dice.choice("xy"),
                type=dice.choice("ab"),
                needs=dice.choice([(), (), ("gpu",)]),
                group=dice.choice([None, None, "customer=1", "customer=2"]),
                priority=dice.choice([0, 5, 9]),
                max_retries=dice.choice([0, 1, 3]),
                delay=dice.choice([0.0, 5.0]),
                run_at=dice.choice([None, None, shared]),
                ageing=dice.choice([0.0, 3.0, float("inf")]),
                retry=RetryPolicy(jitter=dice.choice([0, 0.5]), timeout_growth=dice.choice([1, 1.5])),
                idempotency_key=dice.choice([None, "k"]),
                window=20.0,
                until_started=dice.choice([False, False, True]),
                batch=dice.choice([None, None, "b1", "b2"]),
                next_id=f"{dice.getrandbits(32):08x}-0000-8000-8000-{dice.getrandbits(48):012x}",
            )
            for n in dice.sample(NAMES, 3)
        ]
        assert await self.engine.add(batch) == self.table.add(batch, self.clock.now)

    async def claim(self) -> None:
        dice = self.dice
        wanted = claim_request(
            worker_id=dice.choice(["w1", "w2"]),
            limit=dice.choice([1, 2, 5]),
            lease=dice.choice([3.0, 10.0]),
            queues=dice.choice([(), ("x",), ("x", "y")]),
            types=dice.choice([(), ("a",), ("a", "b")]),
            capabilities=dice.choice([frozenset[str](), frozenset({"gpu"})]),
            per_type_limits=dice.choice([{}, {}, {"a": 1}, {"a": 0, "b": 2}]),
            is_prefetch=dice.choice([False, True]),
            takes_groups=dice.choice([False, True, True]),
            per_group_limits=dice.choice([{}, {}, {"a": 1}, {"a": 2, "b": 1}]),
            group_limits=dice.choice([{}, {}, {"a customer=1": 0}, {"a customer=1": 1, "b customer=2": 0}]),
        )
        expected = self.table.claim(wanted, self.clock.now)
        claimed = await self.engine.claim(wanted)
        assert claimed == expected
        if claimed and dice.random() < 1 / 2:  # as if the response had been lost
            repeated = replace(wanted, is_repeat=True)
            assert await self.engine.claim(repeated) == self.table.claim(repeated, self.clock.now)
        self.seen += claimed

    async def apply(self) -> None:
        held = {task.id: task for task in self.dice.sample(self.seen, min(3, len(self.seen)))}  # also under old leases
        changes = [self._change(task) for task in held.values()]
        assert await self.engine.apply(changes) == self.table.apply(changes, self.clock.now)

    def _change(self, task: Task) -> Change:
        random = self.dice.choice([0.25, 0.5, self.dice.random()])
        started_at = self.dice.choice([None, self.clock.now - random])
        log = self.dice.choice([None, f"line {random}\nlast"])
        return self.dice.choice(
            [
                renew(task, 5.0, started_at=started_at),
                renew(task, 5.0, progress=random, progress_text=self.dice.choice([None, "half\nway"])),
                complete(task, b'"r"', started_at=started_at, log=log),
                fail(task, "e", started_at=started_at, log=log),
                after_error(task, f"e{random}", random=random, log=log),
                after_error(task, "e", random=random, after=random),
                release(task, random, log=log),
                release(task, None),
                amend(task.id, new(0, payload=b"2", priority=self.dice.choice([0, 5]), delay=5 * random)),
                expire(task, random=random, grace=1.0),
                cancel(task.id),
                replay(task.id),
                replay_finished(task.id),
                retry_now(task.id),
                run_now(task.id),
                reschedule(task.id, self.clock.now + self.dice.choice([-4.0, 0.0, 6.0])),
                set_priority(task.id, self.dice.choice([0, 5, 9]), self.dice.choice([0.0, 3.0, float("inf")])),
                withdraw(task.id),
                archive(task.id),
            ]
        )

    async def delete(self) -> None:
        ids = self.dice.sample(sorted({*self.table.tasks, *map(task_id, NAMES)}), 2)
        assert await self.engine.delete(ids) == self.table.delete(ids)

    async def compare(self) -> None:
        now, dice = self.clock.now, self.dice
        where = dice.choice(
            [
                Filter(),
                Filter(queues=("x",), statuses=(Status.PENDING, Status.FAILED)),
                Filter(expired_for=1.0),
                Filter(finished_for=dice.choice([0.0, 5.0])),
                Filter(worker_id=dice.choice(["w1", "w2", "w3"])),
                Filter(worker_id="w1", statuses=(Status.RUNNING, Status.COMPLETED), types=("a",)),
                Filter(retrying=True, statuses=(Status.PENDING, Status.FAILED, Status.CANCELLED)),
                Filter(retrying=False, statuses=(Status.PENDING,)),
                Filter(retrying=dice.choice([True, False])),
                Filter(pending=tuple(dice.sample(list(PendingKind), dice.choice([1, 2]))), statuses=(Status.PENDING,)),
                Filter(
                    pending=(dice.choice(list(PendingKind)),),
                    statuses=dice.choice([(), (Status.PENDING, Status.FAILED)]),
                ),
                Filter(batch=dice.choice(["b1", "b2", "b3"])),
                Filter(batch="b1", statuses=(Status.PENDING, Status.FAILED), types=("a",)),
            ]
        )
        limit, pages = dice.choice([(99, 1), (99, 1), (2, 3)])
        after = ""
        for _ in range(pages):  # at one time: an engine may decide at the first page what matches
            page = self.table.find(where, limit, page_start(after, None), now)
            assert await self.engine.find(where, limit=limit, after=after) == page
            after = cursor(page[-1]) if page else ""
        counted = {lane: n for lane, n in (await self.engine.count()).items() if n}
        assert counted == self.table.count()
        batch = dice.choice(["b1", "b2", "b3"])
        assert {lane: n for lane, n in (await self.engine.count(batch)).items() if n} == self.table.count(batch)
        some = task_id(dice.choice(NAMES))
        assert _with_last_log(await self.engine.history(some)) == _with_last_log(self.table.history(some))


def _with_last_log(events: list[Event]) -> list[Event]:
    """The events without logs before the last one: a store that bounds histories may drop them."""
    last = max((event.version for event in events if event.log is not None), default=0)
    return [event if event.version == last else replace(event, log=None) for event in events]
