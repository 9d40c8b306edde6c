"""The checksum of a database image: CRC-32 of all its bytes, in bytes of SQLite's header that SQLite leaves alone.

Beside it stands the file change counter at the time. SQLite counts it up with every change, so a database that someone
has changed with another tool and put back has no checksum that counts, rather than a wrong one.
"""

from struct import Struct
from zlib import crc32

from qo.errors import StorageError

_PLACE = slice(72, 92)  # "reserved for expansion", 20 bytes
_COUNTER = slice(24, 28)  # the file change counter
_SEAL = Struct(">4s4sI8x")
_MARK = b"qo\x00\x01"
_EMPTY = bytes(_SEAL.size)
_HEADER = 100


def seal_image(data: bytes) -> bytes:
    if len(data) < _HEADER:
        return data
    return data[: _PLACE.start] + _SEAL.pack(_MARK, data[_COUNTER], _checksum(data)) + data[_PLACE.stop :]


def check_image(key: str, data: bytes) -> None:
    """Raises StorageError if the image is not as it was written. One without a checksum is taken as it is."""
    if len(data) < _HEADER or data[_PLACE] == _EMPTY:
        return
    mark, counter, checksum = _SEAL.unpack(data[_PLACE])
    if mark == _MARK and counter == data[_COUNTER] and checksum != _checksum(data):
        raise StorageError(
            f"{key} is damaged: its checksum is not that of its bytes; put an older version in its place"
        )


def _checksum(data: bytes) -> int:
    rest = memoryview(data)
    return crc32(rest[_PLACE.stop :], crc32(_EMPTY, crc32(rest[: _PLACE.start])))
