"""Lanes: each (queue, type, needs, priority) ever seen has a line of its own: nobody stands behind what cannot run."""

from collections.abc import Callable, Sequence
from typing import Any

from qo.engines.redis.calls import Calls
from qo.engines.redis.packing import Place, known_place, pack
from qo.errors import StorageError
from qo.model import Filter, Want, eligible

_NEW = 20  # times in a row that lanes may appear while we ask


class Lanes:
    """What this engine knows of the lanes. A tag tells the server's scripts whether that is all."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tag = ""
        self._places: dict[str, Place] = {}
        self._packed: dict[object, bytes] = {}

    async def claim(self, want: Want, arguments: Sequence[Any]) -> list[Any]:
        """Run `claim.lua` on the lanes a claim may take from."""
        return await self._ask("claim", arguments, lambda: self._wanted(want))

    async def find(self, where: Filter, arguments: Sequence[Any]) -> list[Any]:
        """Run `find.lua` on the lanes a search looks in."""
        return await self._ask("find", arguments, lambda: self._listed(where))

    async def _ask(self, name: str, arguments: Sequence[Any], lanes: Callable[[], bytes]) -> list[Any]:
        for _ in range(_NEW):
            answer: list[Any] = await self._calls.one(name, *arguments, lanes())
            if answer[0]:
                return answer
            self._learn(answer[1], answer[2:])
        raise StorageError("new queues and types appear in Redis all the time; try again")

    def _learn(self, tag: bytes, lanes: Sequence[bytes]) -> None:
        self._tag = tag.decode()
        self._places = {lane.decode(): place for lane in lanes if (place := known_place(lane)) is not None}
        self._packed.clear()

    def _wanted(self, want: Want) -> bytes:
        """The eligible lanes, with the type of each."""
        key = (want.queues, want.types, want.capabilities)
        packed = self._packed.get(key)
        if packed is None:
            names = self._where(lambda place: eligible(want, *place[:3]))
            packed = pack([self._tag, *(text for lane in names for text in (lane, self._places[lane][1]))])
            self._packed[key] = packed
        return packed

    def _listed(self, where: Filter) -> bytes:
        names = self._where(
            lambda place: (
                (not where.queues or place[0] in where.queues) and (not where.types or place[1] in where.types)
            )
        )
        return pack([self._tag, *names])

    def _where(self, test: Callable[[Place], bool]) -> list[str]:
        return [lane for lane, place in self._places.items() if test(place)]
