"""Lanes: each (queue, type, needs, priority) with tasks has a number, which the tasks store.

Priority is included so that pending tasks are counted by it.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import apsw
import msgspec

log = logging.getLogger("qo.engines")
Key = tuple[str, str, tuple[str, ...], int]

_list = msgspec.json.Decoder(tuple[str, ...])


class SqliteLane(NamedTuple):
    queue: str
    type: str
    needs: tuple[str, ...]
    priority: int


class SqliteLanes:
    """The lanes known to one connection. Numbers are never reused, so the highest one shows whether all are known."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._lanes: dict[int, SqliteLane] = {}
        self._numbers: dict[Key, int] = {}

    def forget(self) -> None:
        """Clear the cache: lanes were removed, or additions were rolled back and their numbers may be reused."""
        self._lanes.clear()
        self._numbers.clear()

    @property
    def last(self) -> int:
        """The highest number that is known."""
        return next(reversed(self._lanes), 0)  # numbers are read and given in ascending order

    def forget_after(self, last: int) -> list[int]:
        """Drop the lanes with higher numbers, and return these: other lanes may get them."""
        dropped = []
        while self.last > last:
            number, lane = self._lanes.popitem()
            del self._numbers[lane]
            dropped.append(number)
        return dropped

    def refresh(self) -> None:
        self.catch_up(self._db.execute("SELECT max(n) FROM lanes").get)

    def catch_up(self, last: int | None) -> None:
        if last is not None and last not in self._lanes:
            known = max(self._lanes, default=0)
            for n, queue, type_, needs, priority in self._db.execute(
                "SELECT n, queue, type, needs, priority FROM lanes WHERE n > ?", (known,)
            ):
                try:
                    self._remember(n, SqliteLane(queue, type_, _list.decode(needs), priority))
                except (ValueError, TypeError) as error:  # its tasks are set aside when they are found
                    log.warning("lane %s is damaged and is ignored: %s", n, error)

    def matching(self, takes: Callable[[SqliteLane], bool]) -> list[int]:
        """The numbers of the known lanes that `takes` accepts."""
        return [number for number, lane in self._lanes.items() if takes(lane)]

    def find(self, lane: SqliteLane) -> int | None:
        """The number of a lane, if it is known."""
        return self._numbers.get(lane)

    def __contains__(self, number: int) -> bool:
        return number in self._lanes

    def __getitem__(self, number: int) -> SqliteLane:
        if number not in self._lanes:
            self.refresh()
        return self._lanes[number]

    def number(self, queue: str, type_: str, needs: tuple[str, ...], priority: int) -> int:
        """The lane's number; a new lane is added. Call only inside a transaction that has called `catch_up`."""
        key = (queue, type_, needs, priority)
        number = self._numbers.get(key)
        return self._create(SqliteLane(*key)) if number is None else number

    def _create(self, lane: SqliteLane) -> int:
        row = (lane.queue, lane.type, msgspec.json.encode(lane.needs).decode(), lane.priority)
        insert = "INSERT INTO lanes (queue, type, needs, priority) VALUES (?, ?, ?, ?) RETURNING n"
        number: int = self._db.execute(insert, row).get
        self._remember(number, lane)
        return number

    def _remember(self, number: int, lane: SqliteLane) -> None:
        self._lanes[number] = lane
        self._numbers[lane] = number

    def where(self, test: Callable[[SqliteLane], bool]) -> set[int]:
        self.refresh()
        return {number for number, lane in self._lanes.items() if test(lane)}
