"""Archives and deletes finished tasks by age, and by number where each finished task slows down every write."""

from collections.abc import AsyncIterator

from msgspec import Struct

from qo.engine import Engine, find_pages
from qo.model import WINDOW, Filter, Status, Task, archive

FAILED_RETENTION = 30 * 86_400.0  # seconds dead letters are kept on stores with a default retention
MAX_FINISHED = 1_000  # finished tasks kept on stores with a default retention
_MIN_TRIM_AGE = 300.0  # seconds; younger finished tasks are kept whatever their number, so that results can be read
_COUNTED = (Status.COMPLETED, Status.CANCELLED, Status.ARCHIVED)
_PAGE_SIZE = 1_000  # tasks in one request


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished tasks are kept, in seconds; 0 is for ever."""

    finished: float | None = None  # archived after this, deleted after twice this; None: the store's default
    failed: float | None = None  # dead letters are deleted after this; None: like other finished tasks
    window: float = WINDOW  # how long idempotency keys hold; shorter values than the default have no effect

    def shortest(self, engine: Engine) -> float:
        """The shortest age at which a task may have to be archived or deleted; inf if tasks are kept for ever."""
        settled = self._settled(engine)
        ages = [age for age in (settled.finished, settled.failed) if age]
        if self.finished is None and settled.finished:
            ages.append(_MIN_TRIM_AGE)
        return min(ages, default=float("inf"))

    def _settled(self, engine: Engine) -> "Retention":
        if self.finished is not None:
            return self
        asked = engine.default_retention
        failed = FAILED_RETENTION if self.failed is None and asked else self.failed
        return Retention(finished=asked, failed=failed, window=self.window)

    async def tidy(self, engine: Engine, *, page_size: int = _PAGE_SIZE) -> "Tidied":
        """Archive and delete tasks that are old enough by the store's clock. Raises StorageError.

        A task with an idempotency key is not deleted within the window: its key could then create a second task.
        """
        settled, tidying = self._settled(engine), _Tidying(engine, page_size, max(WINDOW, self.window))
        if settled.failed:
            await tidying.delete((Status.FAILED,), settled.failed)
        if settled.finished:
            ended = (Status.COMPLETED, Status.CANCELLED, *((Status.FAILED,) if settled.failed is None else ()))
            await tidying.archive(ended, settled.finished)
            await tidying.delete((Status.ARCHIVED,), 2 * settled.finished)
            if self.finished is None:
                await tidying.trim(MAX_FINISHED)
        return Tidied(archived=tidying.archived, deleted=tidying.deleted)


class Tidied(Struct, frozen=True, kw_only=True):
    archived: int = 0
    deleted: int = 0


class _Tidying:
    def __init__(self, engine: Engine, page_size: int, window: float) -> None:
        self._engine, self._page_size, self._window = engine, page_size, window
        self.archived = self.deleted = 0

    async def archive(self, statuses: tuple[Status, ...], age: float) -> None:
        async for page in self._pages(Filter(statuses=statuses, finished_for=age)):
            self.archived += sum(await self._engine.apply([archive(task.id) for task in page]))

    async def delete(self, statuses: tuple[Status, ...], age: float) -> None:
        if age < self._window:
            async for page in self._pages(Filter(statuses=statuses, finished_for=age)):
                await self._delete([task for task in page if task.idempotency_key is None])
        async for page in self._pages(Filter(statuses=statuses, finished_for=max(age, self._window))):
            await self._delete(page)

    async def trim(self, limit: int) -> None:
        """Delete the oldest finished tasks beyond `limit`."""
        counts = await self._engine.count()
        if sum(number for lane, number in counts.items() if lane.status in _COUNTED) <= limit:
            return
        passed = 0
        async for page in self._pages(Filter(statuses=_COUNTED, finished_for=_MIN_TRIM_AGE)):
            surplus = page[max(0, limit - passed) :]
            passed += len(page)
            await self._delete([task for task in surplus if task.idempotency_key is None])

    async def _delete(self, tasks: list[Task]) -> None:
        if tasks:
            self.deleted += sum(await self._engine.delete([task.id for task in tasks]))

    def _pages(self, where: Filter) -> AsyncIterator[list[Task]]:
        return find_pages(self._engine, where, page_size=self._page_size)
