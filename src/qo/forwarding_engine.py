"""An engine that passes every call on to another one: the base of engines that change only some calls."""

from collections.abc import Sequence
from typing import Any, ClassVar

from qo.engine import Engine, Snapshot
from qo.model import Added, Change, ClaimRequest, Counts, Event, Filter, NewTask, Note, Task


class ForwardingEngine(Engine):
    """Subclasses override the calls that they change. The other calls, and all facts, are those of `engine`.

    A subclass that reads tasks from another place overrides `get` and `find` as well as their forms without values.
    """

    _forwards_adds: ClassVar = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __init_subclass__(cls) -> None:
        # A subclass that changes `add` must change `add_directly` as well, or direct calls would bypass it.
        is_add_left, is_other_left = cls.add is ForwardingEngine.add, cls.add_directly is ForwardingEngine.add_directly
        cls._forwards_adds = is_add_left or not is_other_left

    @property
    def payload_limit(self) -> int:
        return self.engine.payload_limit

    @property
    def default_retention(self) -> float:
        return self.engine.default_retention

    @property
    def shards(self) -> str:
        return self.engine.shards

    @property
    def is_remote(self) -> bool:
        return self.engine.is_remote

    @property
    def adds_directly(self) -> bool:
        """Only if the subclass leaves `add` as it is, or changes `add_directly` as well."""
        return self._forwards_adds and self.engine.adds_directly

    @property
    def registers_consumers(self) -> bool:
        return self.engine.registers_consumers

    @property
    def advances_workflows(self) -> bool:
        return self.engine.advances_workflows

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        return self.engine.add_directly(tasks) if self._forwards_adds else super().add_directly(tasks)

    async def open(self) -> None:
        await self.engine.open()

    async def close(self) -> None:
        await self.engine.close()

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.engine.add(tasks)

    async def add_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.engine.add_on(connection, tasks)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self.engine.claim(request)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        return await self.engine.apply(changes)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        return await self.engine.delete(ids)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self.engine.get(ids)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.engine.find(where, limit=limit, after=after, created_before=created_before)

    async def snapshot(self) -> Snapshot:
        return await self.engine.snapshot()

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await self.engine.get_without_values(ids)

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.engine.find_without_values(where, limit=limit, after=after, created_before=created_before)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        return await self.engine.with_values(tasks)

    async def count(self, batch: str | None = None) -> Counts:
        return await self.engine.count(batch)

    async def history(self, task_id: str) -> list[Event]:
        return await self.engine.history(task_id)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self.engine.wait(request, timeout)

    async def now(self) -> float:
        return await self.engine.now()

    async def repair(self) -> int:
        return await self.engine.repair()

    async def read_note(self, name: str) -> Note | None:
        return await self.engine.read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self.engine.write_note(name, data, expected=expected)

    async def notes(self, prefix: str) -> list[Note]:
        return await self.engine.notes(prefix)

    async def drop_note(self, name: str) -> None:
        await self.engine.drop_note(name)
