"""The format of the layout, in an object of its own beside the tasks."""

import msgspec

from qo.bucket import NEW, Bucket
from qo.engines.patience import patiently
from qo.errors import Conflict, Refused, StorageError
from qo.formats import Format, check_format, format_of

KEY = "format.json"
FORMAT = 1  # see docs/formats.md
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep

_decoder = msgspec.json.Decoder(Format)


class StoredFormat:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._is_missing = False  # as far as is known

    async def check(self) -> None:
        """Raise Refused if a newer qo has written here, in a way that this one must not touch."""
        blob = await patiently(lambda: self._bucket.get(KEY))
        if blob is None:
            self._is_missing = True
            return
        try:
            found = _decoder.decode(blob.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"{KEY} does not hold a format; look at it and move it away: {error}") from error
        check_format(f"the queue of {KEY}", found, FORMAT)

    async def record(self) -> None:
        """Before the first task is added, if no format was found: reading a bucket leaves nothing in it."""
        if not self._is_missing:
            return
        self._is_missing = False
        data = msgspec.json.encode(format_of(FORMAT, additive=ADDITIVE))
        try:
            await self._bucket.put(KEY, data, expected=NEW)
        except (Conflict, Refused):  # another process was first; or this one may only write tasks, and others do it
            return
