"""Encryption of payloads, results, errors and logs between a program and its store.

A sealed value is AES-256-GCM under a key that is derived from the secret key and the owner of the value, which is the
task. Owner and field are authenticated, so a value that is moved to another task or field cannot be opened. Stores,
servers and processes without the key handle sealed values as raw data. Types, queues, times, keys and notes stay
readable, except the payloads in the notes of schedules.
"""

import binascii
import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from qo.codec import SEALED, SEALED_TEXT
from qo.engine import Engine, Snapshot
from qo.errors import InvalidSetting
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    ERROR_LIMIT,
    LOG_LIMIT,
    SCHEDULE_NOTES,
    Added,
    Change,
    ClaimRequest,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    cut_middle,
    is_a,
    plural,
    show,
)
from qo.model.text import cut_log

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE = "QO_ENCRYPTION_KEYS"
_KEY_SIZE, _KEY_ID_SIZE, _NONCE_SIZE, _TAG_SIZE = 32, 4, 12, 16  # bytes
_OVERHEAD = len(SEALED) + _KEY_ID_SIZE + _NONCE_SIZE + _TAG_SIZE
_STORED_TEXT_LIMIT = min(ERROR_LIMIT, LOG_LIMIT)
_TEXT_LIMIT = (_STORED_TEXT_LIMIT - len(SEALED_TEXT)) // 4 * 3 - _OVERHEAD  # bytes of a text before it is sealed


class Encrypted:
    """Secret keys for `App(url, codec=...)`. The first one seals, and each of them opens.

    To replace a key, put the new one first and keep the old one until no task is left that it sealed.
    """

    def __init__(self, keys: Iterable[bytes | str]) -> None:
        if isinstance(keys, bytes | str):
            raise InvalidSetting("keys= is a list of keys; put the key into a list")
        secrets = [_secret(key) for key in keys]
        if not secrets:
            raise InvalidSetting("keys= is empty; `qo encryption-key` prints a new key")
        self._secrets = {_key_id(secret): secret for secret in secrets}
        self._current = _key_id(secrets[0])
        _cipher(bytes(_KEY_SIZE))  # raises if the library is missing, now rather than at the first task

    @classmethod
    def from_environment(cls) -> "Encrypted | None":
        """The keys in QO_ENCRYPTION_KEYS, separated by commas; None if the variable is not set."""
        given = os.environ.get(KEY_VARIABLE, "")
        return cls([key for key in given.split(",") if key.strip()]) if given.strip() else None

    @staticmethod
    def new_key() -> str:
        return urlsafe_b64encode(os.urandom(_KEY_SIZE)).decode()

    def wrap(self, engine: Engine) -> Engine:
        """The same store, with sealed values."""
        return EncryptedEngine(engine, self)

    def __repr__(self) -> str:
        return f"<Encrypted with {plural(len(self._secrets), 'key')}>"  # without the keys: it may be logged

    def seal(self, value: bytes, owner: str, field: str) -> bytes:
        nonce = os.urandom(_NONCE_SIZE)
        cipher = _cipher(_owner_key(self._secrets[self._current], owner))
        return SEALED + self._current + nonce + cipher.encrypt(nonce, value, field.encode())

    def open(self, sealed: bytes, owner: str, field: str) -> bytes | None:
        """The value, or None if these keys cannot open it, or if it was sealed for another task or field."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        start = len(SEALED)
        secret = self._secrets.get(sealed[start : start + _KEY_ID_SIZE])
        if secret is None:
            return None
        start += _KEY_ID_SIZE
        nonce, data = sealed[start : start + _NONCE_SIZE], sealed[start + _NONCE_SIZE :]
        try:
            return _cipher(_owner_key(secret, owner)).decrypt(nonce, data, field.encode())
        except (InvalidTag, ValueError):
            return None


def check_codec(codec: object) -> None:
    """Raises InvalidSetting, now rather than when the store is opened."""
    if codec is not None and not isinstance(codec, Encrypted):
        raise InvalidSetting(f"codec: {show(codec)} is not a qo.Encrypted; pass codec=qo.Encrypted(keys=[...])")


class EncryptedEngine(ForwardingEngine):
    """Seals values that are written to the store, and opens values that are read.

    A value that cannot be opened stays as it is. Decoding it raises `EncryptedValue`, which makes a worker
    release the task.
    """

    def __init__(self, engine: Engine, keys: Encrypted) -> None:
        super().__init__(engine)
        self._keys = keys

    @property
    def payload_limit(self) -> int:
        return self.engine.payload_limit - _OVERHEAD

    # --- sealing

    def _sealed(self, task: NewTask) -> NewTask:
        if task.payload.startswith(SEALED):
            return task  # sealed by a client of this server
        return replace(task, payload=self._keys.seal(task.payload, _owner_of(task), "payload"))

    def _sealed_change(self, change: Change) -> Change:
        if change.result is None and change.error is None and change.log is None:
            return change
        result, error = change.result, change.error
        if result is not None and not result.startswith(SEALED):
            result = self._keys.seal(result, change.id, "result")
        if error is not None and not error.startswith(SEALED_TEXT):
            error = self._sealed_text(cut_middle(error, _TEXT_LIMIT), change.id, "error")
        log = change.log
        if log is not None and not log.startswith(SEALED_TEXT):
            log = self._sealed_text(cut_log(log, _TEXT_LIMIT), change.id, "log")
        return replace(change, result=result, error=error, log=log)

    def _sealed_text(self, text: str, task_id: str, field: str) -> str:
        sealed = self._keys.seal(text.encode(errors="replace"), task_id, field)
        return SEALED_TEXT + urlsafe_b64encode(sealed).decode()

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.engine.add([self._sealed(task) for task in tasks])

    async def add_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.engine.add_on(connection, [self._sealed(task) for task in tasks])

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        return self.engine.add_directly([self._sealed(task) for task in tasks])

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        changes = [self._sealed_change(change) for change in changes]
        if not any(change.payload is not None for change in changes):
            return await self.engine.apply(changes)
        changes = await self._with_sealed_payloads(changes)
        # The payload of a task that does not exist cannot be sealed, and must not be sent.
        is_sent = [change.payload is None or change.payload.startswith(SEALED) for change in changes]
        sent = [change for change, is_sendable in zip(changes, is_sent, strict=True) if is_sendable]
        answers = iter(await self.engine.apply(sent))
        return [is_sendable and next(answers) for is_sendable in is_sent]

    async def _with_sealed_payloads(self, changes: Sequence[Change]) -> list[Change]:
        """Seal the payloads of replaced tasks for their owners, which the stored tasks name."""
        tasks = await self.engine.get_without_values([change.id for change in changes])
        return [
            change
            if change.payload is None or change.payload.startswith(SEALED) or task is None
            else replace(change, payload=self._keys.seal(change.payload, _owner_of(task), "payload"))
            for change, task in zip(changes, tasks, strict=True)
        ]

    # --- opening

    def _opened(self, task: Task) -> Task:
        result = None if task.result is None else self._opened_value(task.result, task.id, "result")
        payload = self._opened_value(task.payload, _owner_of(task), "payload")
        return replace(task, payload=payload, result=result, error=self._opened_text(task.error, task.id, "error"))

    def _opened_value(self, value: bytes, owner: str, field: str) -> bytes:
        if not value.startswith(SEALED):
            return value  # submitted or settled without a key
        opened = self._keys.open(value, owner, field)
        return value if opened is None else opened

    def _opened_text(self, text: str | None, owner: str, field: str) -> str | None:
        if text is None or not text.startswith(SEALED_TEXT):
            return text
        try:
            sealed = urlsafe_b64decode(text.removeprefix(SEALED_TEXT))
        except (ValueError, binascii.Error):
            return text
        opened = self._keys.open(sealed, owner, field)
        return text if opened is None else opened.decode(errors="replace")

    def _opened_all(self, tasks: Iterable[Task]) -> list[Task]:
        return [self._opened(task) for task in tasks]

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return self._opened_all(await self.engine.claim(request))

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return [None if task is None else self._opened(task) for task in await self.engine.get(ids)]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self.engine.find(where, limit=limit, after=after, created_before=created_before)
        return self._opened_all(found)

    async def snapshot(self) -> Snapshot:
        taken = await self.engine.snapshot()
        return taken._replace(tasks=self._opened_all(taken.tasks))

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        found = await self.engine.get_without_values(ids)
        return [None if task is None else self._opened(task) for task in found]

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self.engine.find_without_values(where, limit=limit, after=after, created_before=created_before)
        return self._opened_all(found)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        return self._opened_all(await self.engine.with_values(tasks))

    # --- schedules: their notes contain the payload of the tasks to come

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(SCHEDULE_NOTES):
            data = _with_payload(data, lambda payload: self._sealed_once(payload, name))
        return await self.engine.write_note(name, data, expected=expected)

    async def read_note(self, name: str) -> Note | None:
        note = await self.engine.read_note(name)
        return None if note is None else self._opened_note(note)

    async def notes(self, prefix: str) -> list[Note]:
        return [self._opened_note(note) for note in await self.engine.notes(prefix)]

    def _sealed_once(self, payload: bytes, owner: str) -> bytes:
        return payload if payload.startswith(SEALED) else self._keys.seal(payload, owner, "payload")

    def _opened_note(self, note: Note) -> Note:
        if not note.name.startswith(SCHEDULE_NOTES):
            return note
        return note._replace(
            data=_with_payload(note.data, lambda payload: self._opened_value(payload, note.name, "payload"))
        )

    async def history(self, task_id: str) -> list[Event]:
        return [
            replace(
                event,
                error=self._opened_text(event.error, task_id, "error"),
                log=self._opened_text(event.log, task_id, "log"),
            )
            for event in await self.engine.history(task_id)
        ]


def _with_payload(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The note of a schedule with another payload. Other bytes are returned unchanged."""
    try:
        document = msgspec.json.decode(data)
        task = document["schedule"]["task"]
        task["payload"] = b64encode(change(b64decode(task["payload"], validate=True))).decode()
    except (ValueError, RecursionError, LookupError, TypeError):
        return data
    return msgspec.json.encode(document)


def _owner_of(task: NewTask | Task) -> str:
    """The owner of a payload: the task, or the scope of its key.

    A payload with an idempotency key is sealed before the store decides whether its task gets a new id.
    """
    key = task.idempotency_key
    return task.id if key is None else f"{task.queue}/{len(task.type)}/{task.type}/{key}"


def _key_id(secret: bytes) -> bytes:
    return sha256(b"qo key id" + secret).digest()[:_KEY_ID_SIZE]


def _owner_key(secret: bytes, owner: str) -> bytes:
    """A key for the values of one owner. Random nonces could repeat among billions of values under one key."""
    return digest(secret, b"qo owner key" + owner.encode(errors="surrogatepass"), "sha256")


@lru_cache(256)
def _cipher(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSetting("encryption needs a library: pip install 'qo-queue[crypto]'") from error
    return AESGCM(key)


def _secret(key: bytes | str) -> bytes:
    if isinstance(key, str):
        try:
            key = b64decode(key.strip().replace("-", "+").replace("_", "/"), validate=True)
        except (ValueError, binascii.Error):
            key = b""
    if not is_a(key, bytes) or len(key) != _KEY_SIZE:  # the message does not show it: it may be secret
        raise InvalidSetting("a key is 32 bytes, or their base64 text; `qo encryption-key` prints a new one")
    return key
