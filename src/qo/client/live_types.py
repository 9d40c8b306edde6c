"""How many types of unfinished tasks a queue may have: a limit that the switches set.

Each type is a lane of its own, and a caller that invents a type for each task would make lanes without end. The limit
is checked where tasks come in, against the counts of the store. A process looks at the switches once it has brought
more than a few types into a queue, and counts once they are many or someone has set the limit. It counts again when it
has brought half of the types that were left. So producers that submit at the same time may pass the limit by some.
"""

import asyncio
from collections.abc import Sequence

from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.model import UNFINISHED, NewTask
from qo.notes import CONTROL, MAX_LIVE_TYPES, Controls, read_or

_FEW = 10  # types that a process brings into a queue without a look at the switches
_MANY = 100  # types that a process brings into a queue without counting, unless the limit was set
_RECHECK_INTERVAL = 60.0  # seconds after which what was found is looked at again
_MAX_REMEMBERED = 20_000  # types of all queues

_Types = dict[str, set[str]]  # by queue


class LiveTypes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._brought: _Types = {}  # submitted here
        self._allowed: _Types = {}  # the same since the last look at the switches
        self._uncounted: dict[str, int] = {}  # by queue, how many more may come until the store is counted again
        self._control = Controls()
        self._check_again_at = float("-inf")
        self._checks, self._checked = 0, asyncio.Event()

    async def check(self, tasks: Sequence[NewTask]) -> None:
        """Raise InvalidTask if one of these would be of one type too many for its queue."""
        if boot_clock() >= self._check_again_at:
            self._allowed.clear()
        new: _Types = {}
        for task in tasks:
            if task.type not in self._allowed.get(task.queue, ()):
                new.setdefault(task.queue, set()).add(task.type)
        if new and self._brings_more_than(_FEW, new):
            self._checks += 1
            try:
                await self._check(new)
            finally:
                self._checks -= 1
                self._checked.set()
        self._remember(new)

    def is_known(self, task: NewTask) -> bool:
        """Whether `check` would let this task pass without a look at the store. From any thread."""
        types = self._brought.get(task.queue, ())
        if task.type not in types:
            return False
        if len(types) <= _FEW:
            return True
        return task.type in self._allowed.get(task.queue, ()) and boot_clock() < self._check_again_at

    async def finish(self) -> None:
        """Wait until each check has an answer: its caller goes on to submit without another pause."""
        while self._checks:
            self._checked.clear()
            await self._checked.wait()

    def _brings_more_than(self, number: int, new: _Types) -> bool:
        return any(len(types | self._brought.get(queue, set())) > number for queue, types in new.items())

    def _remember(self, new: _Types) -> None:
        if sum(map(len, self._brought.values())) > _MAX_REMEMBERED:
            self._brought.clear()
        for queue, types in new.items():
            self._brought.setdefault(queue, set()).update(types)
            self._allowed.setdefault(queue, set()).update(types)

    async def _check(self, new: _Types) -> None:
        if boot_clock() >= self._check_again_at:
            self._control = await read_or(self._engine, CONTROL, Controls, self._control)
            self._check_again_at = boot_clock() + _RECHECK_INTERVAL
            self._uncounted.clear()
        limit = MAX_LIVE_TYPES if self._control.max_types is None else self._control.max_types
        if not limit or (self._control.max_types is None and not self._brings_more_than(_MANY, new)):
            return
        if all(len(types) <= self._uncounted.get(queue, 0) for queue, types in new.items()):
            for queue, types in new.items():
                self._uncounted[queue] -= len(types)
        else:
            await self._count(new, limit)

    async def _count(self, new: _Types, limit: int) -> None:
        live: _Types = {queue: set() for queue in new}
        for lane, number in (await self._engine.count()).items():
            if number and lane.status in UNFINISHED and lane.queue in live:
                live[lane.queue].add(lane.type)
        for queue, types in new.items():
            # Half of what is left: other processes bring types too. So many new types cost few counts.
            self._uncounted[queue] = max(0, limit - len(live[queue] | types)) // 2
            more = types - live[queue]
            if more and len(live[queue] | types) > limit:
                self._check_again_at = float("-inf")  # the limit may be raised at once
                raise InvalidTask(
                    "type",
                    f"queue {queue} has unfinished tasks of {len(live[queue]):,} types, and {len(more):,} more"
                    f" ({min(more)!r:.80}) would pass the limit of {limit:,}; put what differs between tasks into the"
                    " payload, or raise the limit with `qo limit --max-types`",
                )
