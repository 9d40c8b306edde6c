"""Pages of a listing. What the reading of one page found out about the next ones is kept for them."""

from collections import OrderedDict

from qo.model import Filter, Position

_MOST = 16
_MOST_PLACES = 200_000


class PageCache:
    def __init__(self) -> None:
        self._rest: OrderedDict[tuple[bytes, str], list[Position]] = OrderedDict()

    def keep(self, where: Filter, after: str, rest: list[Position]) -> None:
        if rest and len(rest) <= _MOST_PLACES:
            self._rest[_name(where), after] = rest
            if len(self._rest) > _MOST:
                self._rest.popitem(last=False)

    def take(self, where: Filter, after: str) -> list[Position] | None:
        """Newest first. Once: whoever reads the same page again wants to know how it is now."""
        return self._rest.pop((_name(where), after), None)


def _name(where: Filter) -> bytes:
    return repr(where).encode()
