"""The HTTP engine: the port on one side, a line to a server on the other."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from qo import wire
from qo.clock import system_clock
from qo.engine import Engine
from qo.engines.hand_backs import HandBacks
from qo.engines.http.address import HttpAddress, address_of
from qo.engines.http.batches import Item, cut
from qo.engines.http.client import HttpClient, Reply
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

_MARGIN = 10.0  # seconds a long-poll may be late


class HttpEngine(Engine):
    is_remote = True

    @property
    def payload_limit(self) -> int:
        """What the server says that it and its store take; before its first answer, the most that any server takes."""
        told = None if self._line is None else self._line.payload_limit
        return wire.MAX_PAYLOAD_LIMIT if told is None else told

    def __init__(self, address: HttpAddress) -> None:
        self._address = address
        self._line: HttpClient | None = None
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Asks nothing of the server: a worker may start before it does, and goes on trying."""
        if self._line is None:
            self._line = HttpClient(self._address)

    async def close(self) -> None:
        await self._hand_backs.finish()
        line, self._line = self._line, None
        if line is not None:
            await line.close()

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
        for batch in cut(items):
            try:
                reply = await self._ask(call, batch)
            except StorageError as error:
                if not answers or isinstance(error, OutcomeUnknown):
                    raise
                raise OutcomeUnknown(f"{len(answers)} of {len(items)} have landed, then {error}") from error
            if reply.doubtful and not all(_landed(answer) for answer in reply.data):
                raise OutcomeUnknown(f"{self._address.url} was restarted in the middle of {call}; repeat it")
            answers += reply.data
        return answers

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._hand_backs.claim(self._claim(request))

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        again = wire.encode(replace(request, is_repeat=True))
        reply = await self._at_work().ask("claim", wire.encode(request), repeat=again, name=request.lease_id)
        tasks: list[Task] = reply.data
        return tasks

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        reply = await self._ask("write_note", wire.WriteNote(name=name, data=data, expected=expected))
        version: str = reply.data
        return version

    async def drop_note(self, name: str) -> None:
        await self._ask("drop_note", name)

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        tasks: list[Task | None] = []
        for batch in cut(ids):
            answered = 0
            while answered < len(batch):  # a server leaves the last ones out if all would be too large
                some = (await self._ask("get", batch[answered:])).data
                if not some:
                    raise StorageError(f"{self._address.url} answered get with too few tasks")
                tasks += some
                answered += len(some)
        return tasks

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found: list[Task] = []
        while True:
            reply = await self._ask(
                "find", wire.Find(where=where, limit=limit - len(found), after=after, created_before=created_before)
            )
            found += reply.data
            if not reply.is_cut or not reply.data:
                return found
            after = cursor(found[-1])

    async def count(self) -> Counts:
        counts: Counts = (await self._ask("count", None)).data
        return counts

    async def history(self, task_id: str) -> list[Event]:
        events: list[Event] = (await self._ask("history", task_id)).data
        return events

    async def read_note(self, name: str) -> Note | None:
        note: Note | None = (await self._ask("read_note", name)).data
        return note

    async def notes(self, prefix: str) -> list[Note]:
        found: list[Note] = (await self._ask("notes", prefix)).data
        return found

    async def now(self) -> float:
        """By the clock of the server's store; one of an older version does not tell, and this machine's counts."""
        told: float | None = (await self._ask("hello", None)).data.now
        return system_clock() if told is None else told

    # --- waiting, asking

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        timeout = min(timeout, wire.LONGEST_WAIT)
        body = wire.encode(wire.Wait(request=request, timeout=timeout))
        await self._at_work().ask("wait", body, timeout=timeout + _MARGIN)

    async def _ask(self, call: str, request: object) -> Reply:
        return await self._at_work().ask(call, wire.encode(request))

    def _at_work(self) -> HttpClient:
        if self._line is None:
            raise StorageError(f"{self._address.url} is not open; call open() first")
        return self._line


def _landed(answer: Added | bool) -> bool:  # noqa: FBT001 - an answer of the port
    return answer.new if isinstance(answer, Added) else answer


def from_url(url: str) -> Engine:
    return HttpEngine(address_of(url))
