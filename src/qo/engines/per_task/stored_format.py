"""The format of the layout, in an object of its own beside the tasks."""

import msgspec

from qo.bucket import NEW, Bucket
from qo.engines.patience import patiently
from qo.errors import Conflict, Refused, StorageError
from qo.formats import Format, check_format, format_of
from qo.model import UNREADABLE

KEY = "format.json"
FORMAT = 2  # see docs/formats.md; 1: before `successor`
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep

_decoder = msgspec.json.Decoder(Format)


class StoredFormat:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._over = ""  # the version of the object to write the format over; empty: it is as it should be

    async def check(self) -> None:
        """Raise Refused if a newer qo has written here, in a way that this one must not touch."""
        blob = await patiently(lambda: self._bucket.get(KEY))
        if blob is None:
            self._over = NEW
            return
        try:
            found = _decoder.decode(blob.data)
        except UNREADABLE as error:
            raise StorageError(f"{KEY} does not hold a format; look at it and move it away: {error}") from error
        check_format(f"the queue of {KEY}", found, FORMAT)
        if found.format < FORMAT:
            self._over = blob.version

    async def record(self) -> None:
        """Before the first task is added, if there is none or an older one: reading changes nothing in a bucket."""
        expected, self._over = self._over, ""
        if not expected:
            return
        data = msgspec.json.encode(format_of(FORMAT, additive=ADDITIVE))
        try:
            await self._bucket.put(KEY, data, expected=expected)
        except (Conflict, Refused):  # another process was first; or this one may only write tasks, and others do it
            return
