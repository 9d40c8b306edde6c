"""Checksums of what lies in a bucket: a flipped bit is noticed when it is read, and never written back.

A JSON document carries its CRC-32 behind it as white space: a line feed, then 32 characters, a space for 0 and a tab
for 1. Every reader of JSON passes over it, and a writer that does not know of it leaves it out, so it is never
outdated. A document without one is taken as it is. CRC-32 finds every error of up to 32 bits in a row, costs about a
millisecond a megabyte, and a browser can calculate it too (`dashboard/sources/checksum.js`). It does not protect
against forgery.
"""

from zlib import crc32

_BITS = 32
_LENGTH = _BITS + 1  # the line feed
_TO_SPACE = bytes.maketrans(b"01", b" \t")
_FROM_SPACE = bytes.maketrans(b" \t", b"01")


def sealed(document: bytes) -> bytes:
    """The document with its checksum behind it."""
    return document + b"\n" + f"{crc32(document):032b}".encode().translate(_TO_SPACE)


def unsealed(data: bytes) -> bytes:
    """A document that was sealed, without its checksum."""
    return data[:-_LENGTH]


def check_seal(data: bytes) -> bool:
    """Whether the document carries a checksum. Raises ValueError if it is not the document's."""
    tail = data[-_LENGTH:]
    if len(tail) < _LENGTH or tail[:1] != b"\n" or tail.strip(b" \t\n"):
        return False
    if int(tail[1:].translate(_FROM_SPACE), 2) != crc32(memoryview(data)[:-_LENGTH]):
        raise ValueError("its checksum is not that of its bytes")
    return True


def checksum_of(value: bytes) -> str:
    """Of a large value; the task that refers to it carries it."""
    return f"{crc32(value):08x}"
