"""Lists as Postgres arrays, in its binary format.

The driver would look at every element to find its type, at a microsecond each; we know the types, and a batch of a
thousand tasks has a dozen such lists.
"""

from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import Any

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEADER = Struct(">5i")  # dimensions, has nulls, element type, size, first index
_NULL = b"\xff\xff\xff\xff"
_FLOAT, _INTEGER, _LENGTH = Struct(">id"), Struct(">ii"), Struct(">i")
_UUID = "00000010"  # the length of one, in hexadecimal


class Array(bytes):
    """A list that is ready to be sent."""

    oid = element = 0


class Texts(Array):
    oid, element = 1009, 25


class Blobs(Array):
    oid, element = 1001, 17


class Floats(Array):
    oid, element = 1022, 701


class Integers(Array):
    oid, element = 1007, 23


class Uuids(Array):
    oid, element = 2951, 2950


def texts(values: Sequence[str | None]) -> Texts:
    return Texts(_array(Texts, [None if value is None else value.encode() for value in values]))


def blobs(values: Sequence[bytes | None]) -> Blobs:
    return Blobs(_array(Blobs, values))


def uuids(ids: Sequence[str]) -> Uuids:
    """Of canonical ids: see `check_id`."""
    if not ids:
        return Uuids(_empty(Uuids))
    return Uuids(_head(Uuids, len(ids)) + bytes.fromhex(_UUID + _UUID.join(ids).replace("-", "")))


def floats(values: Sequence[float | None]) -> Floats:
    return Floats(_numbers(Floats, values, _FLOAT, 8, "d"))


def integers(values: Sequence[int | None]) -> Integers:
    return Integers(_numbers(Integers, values, _INTEGER, 4, "i"))


def _numbers(kind: type[Array], values: Sequence[float | None], one: Struct, width: int, code: str) -> bytes:
    if not values:
        return _empty(kind)
    if None not in values:  # all of one width: one call
        flat: list[Any] = [width] * (2 * len(values))
        flat[1::2] = values
        return _head(kind, len(values)) + pack(f">{f'i{code}' * len(values)}", *flat)
    written: Callable[[Any], bytes] = lambda value: _NULL if value is None else one.pack(width, value)  # noqa: E731
    return _head(kind, len(values)) + b"".join(map(written, values))


def _array(kind: type[Array], values: Sequence[bytes | None]) -> bytes:
    if not values:
        return _empty(kind)
    length = _LENGTH.pack
    return _head(kind, len(values)) + b"".join(
        [_NULL if value is None else length(len(value)) + value for value in values]
    )


def _head(kind: type[Array], size: int) -> bytes:
    return _HEADER.pack(1, 1, kind.element, size, 1)


def _empty(kind: type[Array]) -> bytes:
    return pack(">3i", 0, 0, kind.element)


def _dumper(kind: type[Array]) -> type[Dumper]:
    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = kind.oid

        def dump(self, obj: Array) -> bytes:
            return obj

    return ArrayDumper


_DUMPERS = [(kind, _dumper(kind)) for kind in (Texts, Blobs, Floats, Integers, Uuids)]


def teach(adapters: AdaptersMap) -> None:
    """Make a connection or cursor know these arrays."""
    for kind, dumper in _DUMPERS:
        adapters.register_dumper(kind, dumper)
