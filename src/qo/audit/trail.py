"""The audit trail of a process: records actions as they happen."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

import msgspec

from qo.audit.archive import compact_audit, write_records
from qo.audit.records import AuditRecord
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import QoError
from qo.ids import random_fraction

log = logging.getLogger("qo.audit")
_MAX_BATCH_SIZE = 100  # records in one note
_WRITE_TIMEOUT = 5.0  # seconds
_COMPACT_ONE_IN = 64  # writes; the monitor compacts too, but need not run


class AuditTrail:
    """The audit trail of one engine, used on its event loop. Concurrent records are written together.

    If a record cannot be written, the action still succeeds and the record is logged.
    """

    def __init__(self, engine: Engine, *, clock: Clock, random: Callable[[], float] = random_fraction) -> None:
        self._engine, self._clock, self._random = engine, clock, random
        self._waiting: list[AuditRecord] = []
        self._lock = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    async def record(self, record: AuditRecord) -> None:
        """Return when the record is stored, or logged because it could not be stored."""
        if self._engine.is_remote:
            return
        self._waiting.append(record)
        async with self._lock:
            if not any(each is record for each in self._waiting):
                return  # another call has written it
            batch, self._waiting = self._waiting[:_MAX_BATCH_SIZE], self._waiting[_MAX_BATCH_SIZE:]
            # In a separate task, so that the cancellation of one caller does not affect the records of others.
            write = asyncio.create_task(self._write(batch))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)
            await asyncio.wait([write])

    async def close(self) -> None:
        """Wait for running writes."""
        if self._writes:
            await asyncio.wait(self._writes)

    async def _write(self, batch: list[AuditRecord]) -> None:
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT):
                await write_records(self._engine, batch)
        except (QoError, TimeoutError) as error:
            for record in batch:
                log.error(  # noqa: TRY400 - the traceback does not help
                    "not in the audit trail, because it could not be stored (%s): %s",
                    str(error) or "no response",
                    msgspec.json.encode(record).decode(),
                    extra={"audit": msgspec.to_builtins(record)},
                )
            return
        if self._random() * _COMPACT_ONE_IN < 1:
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await compact_audit(self._engine, self._clock())
            except (QoError, TimeoutError) as error:  # the monitor compacts it too
                log.debug("the audit trail was not compacted: %s", error)


def cli_user() -> str:
    """The user of this process according to the operating system, not to environment variables."""
    try:
        import pwd  # noqa: PLC0415 - not on every system

        name = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # no such module, or a user without an entry, as in a container
        name = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "unknown")
    return f"{name}@{socket.gethostname()}"
