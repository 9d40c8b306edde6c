"""Caches the positions of the next pages of a listing."""

from collections import OrderedDict

from qo.model import Filter, Position

_MAX_LISTINGS = 16
_MAX_POSITIONS = 200_000


class PageCache:
    def __init__(self) -> None:
        self._rest: OrderedDict[tuple[bytes, str], list[Position]] = OrderedDict()

    def put(self, where: Filter, after: str, rest: list[Position]) -> None:
        if rest and len(rest) <= _MAX_POSITIONS:
            self._rest[_name(where), after] = rest
            if len(self._rest) > _MAX_LISTINGS:
                self._rest.popitem(last=False)

    def take(self, where: Filter, after: str) -> list[Position] | None:
        """Remove and return the positions, newest first. A second read of the same page lists again."""
        return self._rest.pop((_name(where), after), None)


def _name(where: Filter) -> bytes:
    return repr(where).encode()
