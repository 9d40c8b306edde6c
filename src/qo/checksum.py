"""Checksums of stored documents. A reader detects a flipped bit instead of writing it back.

A JSON document is followed by its CRC-32 as white space: a line feed, then 32 characters, a space for 0 and a tab for
1. JSON parsers ignore it, and a writer that does not know the checksum drops it, so it is never out of date. A document
without a checksum is accepted unchecked. CRC-32 detects every burst error of up to 32 bits, costs about 1 ms per
megabyte, and browsers can compute it (`dashboard/sources/checksum.js`). It does not protect against forgery.
"""

from zlib import crc32

_BITS = 32
_LENGTH = _BITS + 1  # the line feed
_TO_SPACE = bytes.maketrans(b"01", b" \t")
_FROM_SPACE = bytes.maketrans(b" \t", b"01")


def sealed(document: bytes) -> bytes:
    """The document, followed by its checksum."""
    return document + b"\n" + f"{crc32(document):032b}".encode().translate(_TO_SPACE)


def unsealed(data: bytes) -> bytes:
    """The document without the checksum that `sealed` added."""
    return data[:-_LENGTH]


def check_seal(data: bytes) -> bool:
    """Return whether the document carries a checksum. Raises ValueError if the checksum does not match."""
    tail = data[-_LENGTH:]
    if len(tail) < _LENGTH or tail[:1] != b"\n" or tail.strip(b" \t\n"):
        return False
    if int(tail[1:].translate(_FROM_SPACE), 2) != crc32(memoryview(data)[:-_LENGTH]):
        raise ValueError("its checksum does not match its content")
    return True


def checksum_of(value: bytes) -> str:
    """The checksum of a large value, which the task that refers to the value stores."""
    return f"{crc32(value):08x}"
