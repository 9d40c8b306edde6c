"""Group commit on one object of a bucket: one write for all concurrent calls.

Calls that arrive during a write wait for the next one. If a write succeeds, the content was current, so the answers of
all calls of its batch are correct, including reads. If no call of a batch changed anything, a read confirms that.

`WriteBehind` and `FlushedDatabase` are protocols of engines that acknowledge a write before the bucket has it, or write
when their owner decides.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from qo.bucket import Bucket
from qo.engines.contention import ContentionSignal, WriterFairness
from qo.errors import Conflict, ObjectTooLarge, OutcomeUnknown, QoError, StorageError
from qo.model import ClaimRequest

_CONFLICT = "{} was written by another process first; this call had no effect; try it again"


@dataclass(slots=True, eq=False)
class PendingCall:
    work: Callable[[Any], Any]  # takes the table
    abandoned: Callable[[Any], None] | None = None  # called with the answer if the caller was cancelled
    request: ClaimRequest | None = None  # the request of a claim
    size: int = 0  # bytes that the call may add to a write, roughly
    answer: Any = None
    error: BaseException | None = None
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def resolve(self, error: BaseException | None) -> None:
        """Give the caller its answer, or the error of the whole batch."""
        error = error or self.error
        if self.done.done():
            if self.abandoned is not None and error is None:
                self.abandoned(self.answer)
        elif error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self.answer)


class CommitLoop(ABC):
    """Subclasses hold the content of the object, and implement the abstract methods."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        *,
        max_batch_size: int = sys.maxsize,
        max_batch_bytes: int = sys.maxsize,
        retries_conflicts: bool = True,
    ) -> None:
        self._bucket, self._key = bucket, key
        self._max_batch_size, self._max_batch_bytes = max_batch_size, max_batch_bytes
        self._retries_conflicts = retries_conflicts
        self._waiting: list[PendingCall] = []
        self._in_flight: list[PendingCall] = []
        self._writer: asyncio.Task[None] | None = None
        self._fairness = WriterFairness(ContentionSignal(bucket, key))

    async def submit(self, call: PendingCall) -> Any:
        """The answer of the call, when the object has its changes."""
        self._waiting.append(call)
        if self._writer is None:
            self._writer = asyncio.create_task(self._serve())
        try:
            return await call.done
        except asyncio.CancelledError:
            if call.done.done() and not call.done.cancelled():  # the caller was cancelled after the answer was set
                call.resolve(call.done.exception())
            raise

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_turn()
                if await self._fairness.begin():
                    self._forget()
                waiting = [call for call in self._waiting if not call.done.done()]
                number = self._fitting(waiting)
                self._in_flight, self._waiting = waiting[:number], waiting[number:]
                if self._in_flight:
                    has_read = not self._is_loaded
                    await self._serve_batch(self._in_flight)
                    self._fairness.end(has_read=has_read)
        finally:
            self._writer = None
            _fail(self._in_flight, OutcomeUnknown, f"{self._key} may have been written before the store was closed")
            _fail(self._waiting, StorageError, f"{self._key} was not written before the store was closed")
            self._in_flight, self._waiting = [], []

    def _fitting(self, waiting: list[PendingCall]) -> int:
        """How many of the calls go into the next write: one at least."""
        size = 0
        for number, call in enumerate(waiting):
            size += call.size
            if number >= self._max_batch_size or (number and size > self._max_batch_bytes):
                return number
        return len(waiting)

    async def _serve_batch(self, batch: list[PendingCall]) -> None:
        left = [batch]  # the next part is the last
        while left:
            part = left.pop()
            if (refusal := await self._serve_part(part)) is not None:
                parts = self._after_refusal(part)
                if not parts:
                    _fail(part, ObjectTooLarge, *refusal.args, cause=refusal)
                left += reversed(parts)

    async def _serve_part(self, batch: list[PendingCall]) -> ObjectTooLarge | None:
        """Commit the calls. Returns an error if they are too large for the store, and resolves them otherwise."""
        try:
            await self._commit(batch)
        except ObjectTooLarge as error:
            self._forget()
            return error
        except QoError as error:
            self._forget()
            _fail(batch, type(error), *error.args, cause=error)
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            self._forget()
            _fail(batch, StorageError, f"{self._key} could not be changed: {error!r}", cause=error)
        else:
            for call in batch:
                call.resolve(None)
        return None

    async def _commit(self, batch: list[PendingCall]) -> None:
        await self._load()  # before the first attempt: the duration of an attempt says how long gaps must be
        attempts, is_fresh = self._fairness.attempts(), False
        while attempts.may_try():
            if not self._is_loaded:
                await self._refresh()
                is_fresh = True
            if not await self._run(batch):
                if is_fresh or not await self._refresh():
                    return None
                is_fresh = True  # another process has written, so the answers are outdated
                continue
            try:
                return await self._write()
            except Conflict:
                self._forget()
                if not self._retries_conflicts:
                    await attempts.report_conflict()
                    raise Conflict(_CONFLICT.format(self._key)) from None
            except QoError:
                raise
            except Exception as error:  # the driver does not report whether it has written
                raise OutcomeUnknown(f"{self._key} may have been written: {error!r}") from error
            is_fresh = False
            await attempts.back_off()
        raise StorageError(f"other processes keep writing {self._key}; try again")

    # --- the content

    async def _wait_for_turn(self) -> None:  # noqa: B027 - optional
        """Called before each batch."""

    async def _load(self) -> None:  # noqa: B027 - optional
        """Load what a later attempt does not load again."""

    def _after_refusal(self, batch: list[PendingCall]) -> list[list[PendingCall]]:  # noqa: ARG002
        """The batches to try instead of one that is too large for the store: none, if its calls fail."""
        return []

    @property
    @abstractmethod
    def _is_loaded(self) -> bool:
        """Whether the content may be used without a read. A write detects outdated content."""

    @abstractmethod
    async def _refresh(self) -> bool:
        """Read the object. Returns whether it has changed."""

    @abstractmethod
    async def _run(self, batch: list[PendingCall]) -> bool:
        """Run the calls on the table; each gets an answer or an error. Returns whether anything has changed."""

    @abstractmethod
    async def _write(self) -> None:
        """Write the content. Raises Conflict if another process has written the object."""

    @abstractmethod
    def _forget(self) -> None:
        """Read again before the next batch: the content is outdated, or its changes were not written."""


def _fail(batch: list[PendingCall], kind: type[QoError], *args: object, cause: BaseException | None = None) -> None:
    """Raise one error per caller: a shared error would collect the tracebacks of all callers."""
    for call in batch:
        if not call.done.done():
            error = kind(*args)
            error.__cause__ = cause
            call.resolve(error)


@runtime_checkable
class WriteBehind(Protocol):
    """An engine that may acknowledge a write before its bucket has it, and may read from an older copy."""

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has every acknowledged write."""

    async def confirmed(self) -> bool:
        """Wait until the bucket has every acknowledged write. False: those writes are lost."""

    async def sync(self) -> None:
        """Write everything to the bucket now and read its content. Raises Conflict if the writes are lost."""


class FlushedDatabase(Protocol):
    """A database in a bucket whose owner controls when it is written."""

    @property
    def lost(self) -> int:
        """How many acknowledged changes never reached the bucket."""

    async def flush(self) -> None:
        """Write every change to the bucket now."""

    def abandon(self) -> None:
        """Stop the background tasks without waiting for them."""
