"""The HTTP engine: each call of the port is a request to a qo server, or several if the batch is large."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from msgspec.structs import replace

from qo import wire
from qo.clock import system_clock
from qo.engine import Engine, without_values
from qo.engines.hand_backs import HandBacks
from qo.engines.http.client import HttpAddress, HttpClient, Reply, address_of
from qo.errors import OutcomeUnknown, StorageError
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    cursor,
)

Item = TypeVar("Item", NewTask, Change, str)

_TASK_OVERHEAD = 500  # bytes of a task without its payload, approximately


def split(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Split a batch into requests that the server accepts, by number and by size."""
    batch: list[Item] = []
    size = 0
    for item in items:
        item_size = _size(item)
        if batch and (size + item_size > wire.BATCH_BYTES or len(batch) == wire.BATCH_ITEMS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


def _size(item: NewTask | Change | str) -> int:
    if isinstance(item, NewTask):
        return _TASK_OVERHEAD + len(item.payload)
    if isinstance(item, Change):
        return _TASK_OVERHEAD + len(item.result or b"") + len(item.error or "")
    return len(item)


_POLL_MARGIN = 10.0  # a response to a long poll may be this late


class HttpEngine(Engine):
    is_remote = True

    @property
    def payload_limit(self) -> int:
        """The limit of the server and its store; until its first response, the highest limit of any server."""
        limit = None if self._client is None else self._client.payload_limit
        return wire.MAX_PAYLOAD_LIMIT if limit is None else limit

    def __init__(self, address: HttpAddress) -> None:
        self._address = address
        self._client: HttpClient | None = None
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Sends no request: a worker may start before the server does, and retries."""
        if self._client is None:
            self._client = HttpClient(self._address)

    async def close(self) -> None:
        await self._hand_backs.finish()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return await self._in_batches("add", tasks)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self._in_batches("apply", changes)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._in_batches("delete", ids)

    async def _in_batches(self, call: str, items: Sequence[Item]) -> list[Any]:
        answers: list[Any] = []
        for batch in split(items):
            try:
                reply = await self._request(call, batch)
            except StorageError as error:
                if not answers or isinstance(error, OutcomeUnknown):
                    raise
                raise OutcomeUnknown(f"{len(answers)} of {len(items)} were applied, then: {error}") from error
            if reply.is_doubtful and not all(_is_applied(answer) for answer in reply.data):
                raise OutcomeUnknown(f"{self._address.url} was restarted during {call}; repeat the call")
            answers += reply.data
        return answers

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._hand_backs.claim(self._claim(request))

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        repeat = wire.encode(replace(request, is_repeat=True))
        reply = await self._opened().request("claim", wire.encode(request), repeat=repeat, name=request.lease_id)
        tasks: list[Task] = reply.data
        return tasks

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        reply = await self._request("write_note", wire.WriteNote(name=name, data=data, expected=expected))
        version: str = reply.data
        return version

    async def drop_note(self, name: str) -> None:
        await self._request("drop_note", name)

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return [task async for some in self._get(ids) for task in some]

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        """Only the values of one response are in memory at a time."""
        return [task and without_values(task) async for some in self._get(ids) for task in some]

    async def _get(self, ids: Sequence[str]) -> AsyncIterator[list[Task | None]]:
        """The tasks of one response at a time: the server omits the last ones if the response would be too large."""
        for batch in split(ids):
            answered = 0
            while answered < len(batch):
                some = (await self._request("get", batch[answered:])).data
                if not some:
                    raise StorageError(f"{self._address.url} answered get with too few tasks")
                yield some
                answered += len(some)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return [task async for some in self._find(where, limit, after, created_before) for task in some]

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        """Only the values of one response are in memory at a time."""
        pages = self._find(where, limit, after, created_before)
        return [without_values(task) async for some in pages for task in some]

    async def _find(
        self, where: Filter, limit: int, after: str, created_before: float | None
    ) -> AsyncIterator[list[Task]]:
        while True:
            reply = await self._request(
                "find", wire.Find(where=where, limit=limit, after=after, created_before=created_before)
            )
            found: list[Task] = reply.data
            yield found
            if not reply.is_cut or not found:
                return
            limit -= len(found)
            after = cursor(found[-1])

    async def count(self, batch: str | None = None) -> Counts:
        async with self._opened().batch_counts if batch is not None else nullcontext():
            counts: Counts = (await self._request("count", batch)).data
        return counts

    async def history(self, task_id: str) -> list[Event]:
        events: list[Event] = (await self._request("history", task_id)).data
        return events

    async def read_note(self, name: str) -> Note | None:
        note: Note | None = (await self._request("read_note", name)).data
        return note

    async def notes(self, prefix: str) -> list[Note]:
        found: list[Note] = (await self._request("notes", prefix)).data
        return found

    async def now(self) -> float:
        """The time of the server's store. An older server does not send it; then this machine's clock is used."""
        now: float | None = (await self._request("hello", None)).data.now
        return system_clock() if now is None else now

    # --- waiting and requests

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        timeout = min(timeout, wire.LONGEST_WAIT)
        body = wire.encode(wire.Wait(request=request, timeout=timeout))
        await self._opened().request("wait", body, timeout=timeout + _POLL_MARGIN)

    async def _request(self, call: str, request: object) -> Reply:
        return await self._opened().request(call, wire.encode(request))

    def _opened(self) -> HttpClient:
        if self._client is None:
            raise StorageError(f"{self._address.url} is not open; call open() first")
        return self._client


def _is_applied(answer: Added | bool) -> bool:  # noqa: FBT001 - a result of the port
    return answer.new if isinstance(answer, Added) else answer


def from_url(url: str) -> Engine:
    return HttpEngine(address_of(url))
