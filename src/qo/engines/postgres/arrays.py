"""Lists in the binary format of Postgres arrays.

The driver inspects every element to find its type, at a microsecond each, and a batch of a thousand tasks has a dozen
lists. Here the types are known.
"""

from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import Any

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEADER = Struct(">5i")  # dimensions, has nulls, OID of the element type, size, first index
_NULL = b"\xff\xff\xff\xff"
_FLOAT, _INTEGER, _LENGTH = Struct(">id"), Struct(">ii"), Struct(">i")
_UUID_LENGTH = "00000010"  # hexadecimal


class Array(bytes):
    """An encoded list."""

    oid = element = 0  # the OIDs of the array and of its elements


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
    """Encode ids in canonical form: see `check_id`."""
    if not ids:
        return Uuids(_empty(Uuids))
    return Uuids(_head(Uuids, len(ids)) + bytes.fromhex(_UUID_LENGTH + _UUID_LENGTH.join(ids).replace("-", "")))


def floats(values: Sequence[float | None]) -> Floats:
    return Floats(_numbers(Floats, values, _FLOAT, 8, "d"))


def integers(values: Sequence[int | None]) -> Integers:
    return Integers(_numbers(Integers, values, _INTEGER, 4, "i"))


def _numbers(kind: type[Array], values: Sequence[float | None], one: Struct, width: int, code: str) -> bytes:
    if not values:
        return _empty(kind)
    if None not in values:  # elements of equal width: one call packs them all
        flat: list[Any] = [width] * (2 * len(values))
        flat[1::2] = values
        return _head(kind, len(values)) + pack(f">{f'i{code}' * len(values)}", *flat)
    encode: Callable[[Any], bytes] = lambda value: _NULL if value is None else one.pack(width, value)  # noqa: E731
    return _head(kind, len(values)) + b"".join(map(encode, values))


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


def register_arrays(adapters: AdaptersMap) -> None:
    """Make a connection or cursor accept these arrays as parameters."""
    for kind, dumper in _DUMPERS:
        adapters.register_dumper(kind, dumper)
