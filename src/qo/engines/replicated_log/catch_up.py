"""Catch-up: applies the records that other processes have created since the replica's position."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.frame import DamagedFrame
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.log_meta import append_step
from qo.engines.replicated_log.merged_records import MergedRecords, block_of, chosen
from qo.engines.replicated_log.record_store import DamagedRecord, LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica, UnappliableRecord
from qo.engines.replicated_log.shared_runs import SharedRuns
from qo.engines.replicated_log.tail_proof import TailProof
from qo.engines.requests import in_parallel
from qo.errors import StorageError

log = logging.getLogger("qo.engines.replicated_log")
_MAX_WINDOW = 32  # records that are read at the same time
_MAX_EXPECTED = 128  # the same, for a process that loses races against busy writers and must find the end with one read
_MAX_WINDOW_BYTES = 4 * 1024 * 1024  # of patchsets; fewer records are read at the same time if they are larger
_MAX_HELD_BYTES = 16 * 1024 * 1024  # of patchsets that wait to be applied
_MAX_MERGED = 4  # merged records that are read at the same time; each may have megabytes
_MAX_LOADS = 3  # of a replica in one run


class StaleReplica(Exception):
    """Records after the replica's position were deleted, so it must be loaded again."""


class CatchUp:
    def __init__(
        self,
        records: RecordStore,
        live: LiveReplica,
        proof: TailProof,
        checkpoints: CheckpointStore,
        *,
        merged: MergedRecords,
        block_size: int,
        applied: Callable[[LogRecord], object],
        damaged: Callable[[str, object], Awaitable[None]],
    ) -> None:
        """`applied` is called with each applied record, `damaged` with the key of a damaged one."""
        self._records, self._live, self._proof, self._checkpoints = records, live, proof, checkpoints
        self._merged, self._block_size = merged, block_size
        self._applied, self._damaged = applied, damaged
        self._runs = SharedRuns(self._run)
        self._expected = 0  # records

    async def run(self) -> bool:
        """Apply every record that exists at some time after this call. Returns whether there was one.

        Raises DamagedRecord if one cannot be read or applied. The replica stays before it.
        """
        return await self._runs.run()

    async def finish(self, timeout: float) -> None:
        await self._runs.finish(timeout)

    async def _run(self) -> bool:
        has_failed = False
        for _ in range(_MAX_LOADS):
            await self._live.open()
            before, setbacks = self._live.position, self._live.setbacks
            try:
                await self._tail()
            except StaleReplica:
                log.info("records after %s were deleted; loading the replica again", self._records.key(before.seq))
            except DamagedRecord as error:
                if not await self._is_superseded(error.key, error):
                    raise
            except UnappliableRecord as error:
                key = self._records.key(self._live.position.seq + 1)
                if has_failed:
                    raise DamagedRecord(
                        f"{key} does not match the records before it: {error}; see `qo doctor`, and restore an older"
                        " version of the bucket"
                    ) from error
                log.warning("%s does not match this replica; loading the replica again: %s", key, error)
                has_failed = True
            else:
                if self._live.setbacks == setbacks:  # otherwise a commit has lost a race after the last read
                    self._live.is_behind = False
                return has_failed or self._live.position != before
            self._proof.reset()
            await self._live.drop()
        raise StorageError(
            f"{self._records.key(before.seq + 1)}: records are deleted faster than they are read; try again"
        )

    async def _is_superseded(self, key: str, problem: object) -> bool:
        """Whether an image contains the content of a damaged record. If none does, request one from a live replica."""
        newest = (await self._checkpoints.read()).newest_image
        if newest is not None and newest.seq > self._live.position.seq:
            log.warning("%s; an image contains it, so the replica is loaded again", problem)
            return True
        await self._damaged(key, problem)
        return False

    async def _tail(self) -> None:
        # After a conflict the next record exists; with busy writers, probably as many as last time.
        window = max(2, self._expected) if self._live.is_behind else 1
        before, is_first = self._live.position.seq, True
        while True:
            start, first = self._proof.begin(), self._live.position.seq + 1
            block = block_of(first, self._block_size)
            if window >= _MAX_WINDOW and first == block.first and not is_first and await self._apply_merged():
                continue
            # Later windows end with a block, so that the next one can be read from a merged record.
            end = first + window if is_first else min(first + window, block.last + 1)
            found = await self._read(range(first, end))
            records, is_first = _unbroken(found), False
            await self.check_floor(first)
            await self._apply(records)
            if len(records) < len(found) and isinstance(damage := found[len(records)], DamagedRecord):
                raise damage
            size = sum(len(record.patchset) for record in records)
            if len(records) < len(found):
                self._proof.proved(start)
                step = self._live.replica.upgrade() if self._live.is_open else None
                if step is None:
                    self._expect(self._live.position.seq - before, size)
                    return
                await append_step(self._records, self._live.position, step)
            del found, records  # before the next ones are read
            window = min(2 * window, _MAX_WINDOW) if size <= _MAX_WINDOW_BYTES else max(window // 2, 1)

    def _expect(self, records: int, size: int) -> None:
        """Record how many records the next catch-up may find, unless they are large."""
        expected = max(records + 1, self._expected // 2)
        self._expected = min(expected, _MAX_EXPECTED if size <= _MAX_WINDOW_BYTES else 1)

    async def _read(self, numbers: range) -> list[LogRecord | DamagedRecord | None]:
        """Read records concurrently, at least the first.

        Those that exceed the limit are dropped and read later: the size of a record is known only after it was read.
        """
        held, dropped = 0, set[int]()

        async def get(seq: int) -> LogRecord | DamagedRecord | None:
            nonlocal held
            is_allowed = held <= _MAX_HELD_BYTES or seq == numbers[0]
            record = await self._get(seq) if is_allowed else None
            size = len(record.patchset) if isinstance(record, LogRecord) else 0
            if seq > numbers[0] and (not is_allowed or held + size > _MAX_HELD_BYTES):
                dropped.add(seq)
                return None
            held += size
            return record

        found = await in_parallel(get, numbers, max_concurrent=_MAX_EXPECTED)
        return found[: min(dropped, default=numbers.stop) - numbers[0]]

    async def _get(self, seq: int) -> LogRecord | DamagedRecord | None:
        """The record, or the problem with it. The records before it are applied anyway."""
        try:
            return await self._records.get(seq)
        except DamagedRecord as error:
            return error

    async def _apply_merged(self) -> bool:
        """Apply the merged records that follow, for a replica that is far behind. Returns whether there were any."""
        seq = self._live.position.seq
        path = chosen(seq, await self._merged.ranges(seq))
        try:
            for at in range(0, len(path), _MAX_MERGED):
                some = path[at : at + _MAX_MERGED]
                merged = _unbroken(await in_parallel(self._merged.get, some))
                await self._apply(merged)
                if len(merged) < len(some):
                    break
        except (DamagedFrame, UnappliableRecord) as error:
            log.warning("merged records cannot be used; reading the original ones: %s", error)
        return self._live.position.seq > seq

    async def check_floor(self, seq: int) -> None:
        """Raise StaleReplica if a missing record of this number may have been deleted, or a found one is not valid.

        Call this after the store's answer. Only a recent proof makes the additional request unnecessary.
        """
        if not self._proof.is_trusted() and (await self._checkpoints.read()).floor > seq:
            raise StaleReplica

    async def _apply(self, records: Sequence[LogRecord]) -> None:
        if not records:
            return
        async with self._live.lock:  # waits for a commit of this process, which may have created the first of them
            if not self._live.is_open:  # that commit has found that the replica is stale
                raise StaleReplica
            last = self._live.position.seq
            new = [record for record in records if record.header.first > last]
            if new:
                await self._live.write(lambda replica: _apply_all(replica, new))
        for record in new:
            self._applied(record)


def _apply_all(replica: Replica, records: Sequence[LogRecord]) -> None:
    for record in records:
        replica.apply(record)


def _unbroken(records: Sequence[LogRecord | DamagedRecord | None]) -> list[LogRecord]:
    """The records before the first one that is missing or damaged."""
    found: list[LogRecord] = []
    for record in records:
        if not isinstance(record, LogRecord):
            break
        found.append(record)
    return found
