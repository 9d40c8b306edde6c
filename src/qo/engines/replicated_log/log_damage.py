"""Reports of damaged objects of a log, and their repair by a process whose replica does not need them.

A process that cannot pass a damaged object writes the note `quarantine/log/{shard}/{number}`. The next `repair()` of a
process whose replica contains the number writes an image, so new processes no longer need the object.
"""

import msgspec
from msgspec import Struct

from qo.bucket import ANY, Bucket
from qo.damage import Quarantine
from qo.engines.note_objects import NoteObjects
from qo.engines.replicated_log.frame import DamagedFrame, get_frame
from qo.engines.replicated_log.keys import FrameKind, parse_key
from qo.model import UNREADABLE

_PREFIX = "quarantine/log/"


class LogDamage(Struct, frozen=True, kw_only=True):
    """The content of the note."""

    key: str
    problem: str

    @property
    def seq(self) -> int:
        """A replica that contains this number does not need the object."""
        name = parse_key(self.key)
        if name is None:
            return 0
        return name.last or name.first if name.kind is FrameKind.MERGED else name.first

    @property
    def image_token(self) -> str:
        """The token of the image, if the object is a part of one."""
        name = parse_key(self.key)
        return name.token or "" if name is not None and name.kind is FrameKind.IMAGE_PART else ""


class LogDamageNotes:
    """The reports about one shard."""

    def __init__(self, bucket: Bucket, shard: int) -> None:
        self._bucket = bucket
        self._prefix = f"{_PREFIX}{shard:02x}/"
        self._notes = NoteObjects(bucket, Quarantine())

    async def report(self, key: str, problem: object) -> None:
        damage = LogDamage(key=key, problem=str(problem))
        await self._notes.write(self._name(damage), msgspec.json.encode(damage), ANY)

    async def reported(self) -> list[LogDamage]:
        """The reported objects that are still damaged. Notes about objects that can be read again are removed."""
        damaged: list[LogDamage] = []
        for note in await self._notes.find(self._prefix):
            try:
                damage = msgspec.json.decode(note.data, type=LogDamage)
            except UNREADABLE:
                continue
            if await self._is_damaged(damage.key):
                damaged.append(damage)
            else:
                await self._notes.drop(note.name)
        return damaged

    async def healed(self, damage: LogDamage) -> None:
        """The object is no longer needed."""
        await self._notes.drop(self._name(damage))

    def _name(self, damage: LogDamage) -> str:
        return f"{self._prefix}{damage.seq:016x}"

    async def _is_damaged(self, key: str) -> bool:
        if parse_key(key) is None:
            return False
        try:
            return await get_frame(self._bucket, key) is None
        except DamagedFrame:
            return True
