"""The maintenance of one shard by a process that uses it: loading, merging, images, and the removal of garbage."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from qo.bucket import Bucket
from qo.engines.replicated_log.compaction import LogCompactor
from qo.engines.replicated_log.garbage import LogGarbage
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.loader import load_replica
from qo.engines.replicated_log.log_damage import LogDamageNotes
from qo.engines.replicated_log.log_meta import LogMeta
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.record_store import LogRecord
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.replica_file import PinnedReplica
from qo.engines.replicated_log.runner import Runner
from qo.errors import QoError, StorageError

log = logging.getLogger("qo.engines.replicated_log")

_CLOSE_TIMEOUT = 5.0


class LogMaintenance:
    """`load` loads the replica. `applied` and `committed` are called with every record that the replica contains."""

    def __init__(
        self, bucket: Bucket, meta: LogMeta, shard: int, options: LogOptions, *, new_runner: Callable[[], Runner]
    ) -> None:
        log_id = meta.id
        self._bucket, self._meta, self._shard = bucket, meta, shard
        self._run = new_runner()  # a separate runner: the replica is used while an image is compressed
        self._compactor = LogCompactor(
            bucket,
            log_id,
            shard,
            runner=self._run,
            block_size=options.block_size,
            image_threshold=options.image_threshold,
        )
        self._garbage = LogGarbage(
            bucket, log_id, shard, min_record_age=options.min_record_age, min_step=options.block_size
        )
        self._damage = LogDamageNotes(bucket, shard)
        self._reported: set[str] = set()  # keys
        self._background: set[asyncio.Task[None]] = set()

    async def load(self) -> Replica:
        return await load_replica(
            self._bucket,
            self._meta.id,
            self._shard,
            runner=self._run,
            saw=self._compactor.saw,
            first_schema=self._meta.first_schema,
        )

    def applied(self, record: LogRecord) -> None:
        self._compactor.saw(record)

    def committed(self, record: LogRecord, live: LiveReplica) -> bool:
        """The process that completes a block merges it, so that no election is needed.

        Returns whether this process does.
        """
        is_last = self._compactor.saw(record)
        if is_last:
            self.start(self._compactor.end_block(record.header.last, lambda: _pin(live)))
        return is_last

    def shrank(self, size: int) -> None:
        """Tasks of this many stored bytes have left the tables."""
        self._compactor.shrank(size)

    async def repair(self, live: LiveReplica) -> int:
        """Merge, write the image that is due, and delete garbage. The replica must be open.

        Returns the number of repairs.
        """
        return await self._compactor.repair(lambda: _pin(live)) + await self._garbage.collect()

    async def report(self, key: str, problem: object) -> None:
        """Request an image from other processes that replaces a damaged object."""
        if key in self._reported:
            return
        with suppress(StorageError):  # this process may have no right to write
            await self._damage.report(key, problem)
            self._reported.add(key)

    async def finish(self) -> None:
        """End the work in the background. The replica must still be open.

        Other processes repeat what is not finished.
        """
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSE_TIMEOUT)
        for task in (background := [*self._background]):
            task.cancel()
        if background:
            await asyncio.wait(background)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background. The next repair repeats what fails."""
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _pin(live: LiveReplica) -> PinnedReplica:
    async with live.lock:
        return await live.write(lambda replica: replica.pin())


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except QoError as error:
        log.warning("records were not merged, or tasks not moved; the next repair tries again: %s", error)
    except Exception:
        log.exception("records were not merged, or tasks not moved")
