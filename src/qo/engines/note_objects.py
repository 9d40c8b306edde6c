"""Notes as objects of a bucket, in four folders, because a bucket's policies grant rights by key prefix.

workers/{id}.json   registrations of workers
admin/{name}.json   notes that grant rights or record actions: only an administrator's credentials can access them
audit/{name}.json   new records of the audit trail: other roles may only add records
notes/{name}.json   all other notes
"""

from collections import OrderedDict
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from qo.bucket import Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import Quarantine, check_seal, sealed
from qo.engines.requests import in_parallel, retry
from qo.ids import new_token as new_write_id
from qo.model import ADMIN_NOTES, AUDIT_NOTES, DAMAGED, UNREADABLE, Note

WORKERS, NOTES = "workers/", "notes/"
_OWN_FOLDERS = (WORKERS, ADMIN_NOTES, AUDIT_NOTES)  # the names of notes in these folders are used as keys
_MAX_CACHED_NOTES = 1000
_KEPT_WRITE_IDS = 8  # other processes may write up to this often before a lost response is resolved


class NoteDocument(Struct, frozen=True, kw_only=True):
    name: str
    data: bytes
    writes: tuple[str, ...]  # ids of the last writes, so that no two writes produce equal bytes and thus equal versions


class _Read(NamedTuple):
    version: str
    writes: tuple[str, ...]


class NoteObjects:
    def __init__(self, bucket: Bucket, quarantine: Quarantine) -> None:
        self._bucket, self._quarantine = bucket, quarantine
        self._read: OrderedDict[str, _Read] = OrderedDict()  # the last version read or written of each note

    async def read(self, name: str) -> Note | None:
        key = key_of(name)
        blob = await retry(lambda: self._bucket.get(key))
        if blob is None:
            return None
        return self._note(name, key, blob)

    async def write(self, name: str, data: bytes, expected: str) -> str:
        key, write = key_of(name), new_write_id()
        last = self._read.get(name)
        former = last.writes if last is not None and last.version == expected else ()
        writes = (*former, write)[-_KEPT_WRITE_IDS:]
        content = sealed(msgspec.json.encode(NoteDocument(name=name, data=data, writes=writes)))
        version = await put_document(
            self._bucket, key, content, expected=expected, is_ours=lambda stored: _is_ours(stored, write)
        )
        if version != SUPERSEDED:
            self._remember(name, _Read(version, writes))
        return version

    async def find(self, prefix: str) -> list[Note]:
        names = await retry(lambda: self._names(prefix))
        notes = [note for note in await in_parallel(self.read, names) if note is not None]
        return sorted(notes, key=lambda note: note.name)

    async def _names(self, prefix: str) -> list[str]:
        keys: list[str] = []
        for folder in _OWN_FOLDERS:
            if prefix.startswith(folder) or folder.startswith(prefix):
                keys += [key async for key in self._bucket.keys(folder + _quoted(folder, prefix[len(folder) :]))]
        if not prefix.startswith(_OWN_FOLDERS):
            keys += [key async for key in self._bucket.keys(NOTES + quote(prefix, safe=":/"))]
        names = {key: _name(key) for key in keys}
        for key, name in names.items():
            if key_of(name) != key:
                self._quarantine.put(key, "its name is not that of a note")
        return [name for key, name in names.items() if key_of(name) == key and name.startswith(prefix)]

    def _note(self, name: str, key: str, blob: Blob) -> Note:
        note = self._decode(key, blob)
        if note is None:
            return Note(name, DAMAGED + blob.data, blob.version)
        self._remember(name, _Read(blob.version, note.writes))
        return Note(name, note.data, blob.version)

    async def drop(self, name: str) -> None:
        await retry(lambda: self._bucket.delete(key_of(name)))

    def _decode(self, key: str, blob: Blob) -> NoteDocument | None:
        try:
            note = _decoded(blob.data)
        except UNREADABLE as error:
            self._quarantine.put(key, error)
            return None
        if key_of(note.name) != key:
            self._quarantine.put(key, f"its content names another note, {note.name!r:.80}")
            return None
        return note

    def _remember(self, name: str, read: _Read) -> None:
        self._read[name] = read
        if len(self._read) > _MAX_CACHED_NOTES:
            self._read.popitem(last=False)


def _decoded(data: bytes) -> NoteDocument:
    check_seal(data)
    return msgspec.json.decode(data, type=NoteDocument)


def _is_ours(stored: bytes, write: str) -> bool | None:
    try:
        note = _decoded(stored)
    except UNREADABLE:
        return None
    forgotten = len(note.writes) == _KEPT_WRITE_IDS and write not in note.writes
    return None if forgotten else write in note.writes


def key_of(name: str) -> str:
    for folder in _OWN_FOLDERS:
        if name.startswith(folder):
            return f"{folder}{_quoted(folder, name[len(folder) :])}.json"
    return f"{NOTES}{quote(name, safe=':/')}.json"


def _quoted(folder: str, name: str) -> str:
    return quote(name, safe=":" if folder == WORKERS else ":/")


def _name(key: str) -> str:
    """The name of the note in an object, if the object holds one."""
    return unquote((key if key.startswith(_OWN_FOLDERS) else key.removeprefix(NOTES)).removesuffix(".json"))
