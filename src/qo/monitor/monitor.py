"""The monitor: expires leases, notices dead workers, tidies up.

Any number may run: every write is guarded, so they cannot do harm; a note elects one, so they do not do it all twice.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import NamedTuple

import msgspec
from msgspec import Struct

from qo import notes
from qo.audit import compact_audit
from qo.client import Client
from qo.clock import Clock, monotonic_clock, system_clock, unset_clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, NewerFormat, Refused, StorageError
from qo.ids import luck
from qo.model import NEW, Note
from qo.monitor.settings import MonitorSettings
from qo.stats import compact_stats
from qo.store_time import StoreTime
from qo.sweep.lease_expiry import LeaseExpiry
from qo.sweep.retention import Retention

log = logging.getLogger("qo.monitor")
_LATE = 1.25, 2.0  # a check may come this much later than planned: a factor, and seconds
_TERM = 2  # checks a leader is good for: every second one renews it
_COMPACT_INTERVAL = 1800.0  # seconds between two compactions of the statistics and the audit trail
_BURIALS = 4  # checks: so often silent workers are looked for
_LONGEST_TERM = 3600.0  # seconds: a leader note that stays the same for longer has no leader behind it
_MOST_WATCHED = 10_000  # notes
_UNTOLD_TERM = 900.0  # seconds, for a note that does not say how long its term is


class Checked(Struct, frozen=True, kw_only=True):
    """What one check did."""

    led: bool = True  # False: another monitor leads, and nothing was done
    expired: int = 0
    dead_workers: int = 0
    archived: int = 0
    deleted: int = 0
    repaired: int = 0


class _Term(NamedTuple):
    version: str  # of the leader note
    until: float
    ends: float  # by the clock that nobody sets


class Monitor:
    def __init__(
        self,
        client: Client,
        settings: MonitorSettings | None = None,
        *,
        id: str,
        clock: Clock = system_clock,
        elapsed: Clock | None = None,  # that nobody sets
    ) -> None:
        self._engine: Engine = client.engine
        self._settings = settings or MonitorSettings()
        self._id, self._clock = id, StoreTime(client.engine, clock)
        self._elapsed = elapsed or unset_clock(clock)
        self._unchanged = _Unchanged(self._elapsed)
        awake = elapsed or unset_clock(clock, monotonic_clock)
        self._expiry = LeaseExpiry(client.engine, client.transitions, awake, looks_ahead=True)
        self._stopping = asyncio.Event()
        self._retention = _retention(client, self._settings)
        self._swept_at = {"repair": float("-inf"), "tidy": float("-inf"), "compact": float("-inf")}
        self._next = self._settings.check_interval  # seconds until the next check
        self._term: _Term | None = None  # while this monitor leads
        self._checks = 0

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Check until stopped; a store that is away is waited for.

        Raises NewerFormat when a newer qo has upgraded the store: this build cannot use it any more.
        """
        while not self._stopping.is_set():
            self._next = self._settings.check_interval * (0.9 + 0.2 * luck())
            try:
                await self.check()
            except NewerFormat:
                raise
            except StorageError as error:
                log.warning("the store is unreachable: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next):
                    await self._stopping.wait()
        with contextlib.suppress(StorageError):
            await self._resign()

    async def check(self) -> Checked:
        """One round, if this monitor leads."""
        await self._clock.look()
        if not await self._lead():
            await self._expiry.look()  # this monitor may have to take over right after the clock was set
            return Checked(led=False)
        expired = await self._expire()
        dead = await self._bury_workers() if self._checks % _BURIALS == 0 else 0
        self._checks += 1
        swept = await self._sweep()
        return msgspec.structs.replace(swept, expired=expired, dead_workers=dead)

    async def check_once(self) -> Checked:
        """One round, then let another lead."""
        checked = await self.check()
        await self._resign()
        return checked

    # --- who does it

    async def _lead(self) -> bool:
        """Whether this monitor does the work. One that leads asks nobody until its term ends."""
        now = self._clock()
        factor, seconds = _LATE
        check = factor * self._settings.check_interval + seconds
        if self._term is not None and min(self._term.until - now, self._term.ends - self._elapsed()) >= check:
            return True
        version = self._term.version if self._term is not None else await self._vacancy(now)
        self._term = None
        if version is None:
            return False
        term = notes.Leader(holder=self._id, until=now + _TERM * check, term=_TERM * check)
        try:
            version = await self._engine.write_note(notes.LEADER, msgspec.json.encode(term), expected=version)
        except Conflict:
            return False
        self._term = _Term(version, term.until, self._elapsed() + term.term)
        return True

    async def _vacancy(self, now: float) -> str | None:
        """What to write over to lead; None while another leads."""
        note = await self._engine.read_note(notes.LEADER)
        if note is None:
            return NEW
        try:
            leader = notes.decode(note, notes.Leader)
        except DamagedNote as error:
            await notes.set_aside(self._engine, error)
            return note.version
        if leader.holder in {"", self._id} or leader.until <= now:
            return note.version
        unchanged = self._unchanged.seconds(note)
        if unchanged > min(leader.term or _UNTOLD_TERM, _LONGEST_TERM):
            log.warning("monitor %s says it leads until long from now, but has been silent; taking over", leader.holder)
            return note.version
        self._next = min(2 * self._settings.check_interval, leader.until - now)  # be there if it does not come back
        return None

    async def _resign(self) -> None:
        """Let another lead at once."""
        self._term = None
        note = await self._engine.read_note(notes.LEADER)
        with contextlib.suppress(Conflict, DamagedNote):  # then another has it, or the next to lead sets it aside
            if note is not None and notes.decode(note, notes.Leader).holder == self._id:
                await self._engine.write_note(notes.LEADER, msgspec.json.encode(notes.Leader()), expected=note.version)

    # --- what is done

    async def _expire(self) -> int:
        """Tasks whose worker went silent fail like any other: with back-off, and for good in the end."""
        return len(await self._expiry.expire(grace=self._settings.grace, page_size=self._settings.sweep_page_size))

    async def _bury_workers(self) -> int:
        dead = 0
        for note in await self._engine.notes(notes.WORKERS):
            try:
                dead += await self._bury(note)
            except DamagedNote as error:
                await notes.set_aside(self._engine, error)
                await self._engine.drop_note(note.name)  # a worker that lives writes it again
        return dead

    async def _bury(self, note: Note) -> bool:
        """Whether the worker is found to be dead: by its last sign of life, or, if that lies ahead, by none coming."""
        worker = notes.decode(note, notes.WorkerNote)
        silent = self._clock() - worker.last_heartbeat - self._expiry.ahead_since(worker.last_heartbeat)
        silent = max(silent, self._unchanged.seconds(note))
        if silent > self._settings.forget_workers:
            await self._engine.drop_note(note.name)
        elif silent > self._settings.worker_health_threshold and worker.status != "dead":
            as_tombstone = msgspec.structs.replace(worker, status="dead")
            with contextlib.suppress(Conflict):  # it came back
                await self._engine.write_note(note.name, msgspec.json.encode(as_tombstone), expected=note.version)
                log.warning("worker %s has been silent for %.0f s", worker.worker_id, silent)
                return True
        return False

    async def _sweep(self) -> Checked:
        """Now and then: what is no hurry."""
        repaired = 0
        if self._is_due("repair", self._settings.sweep_interval):
            repaired = await self._engine.repair()
        if self._is_due("compact", max(_COMPACT_INTERVAL, self._settings.sweep_interval)):
            await compact_stats(self._engine, self._clock())
            await self._compact_audit()
        shortest = self._retention.shortest(self._engine)
        if shortest == float("inf") or not self._is_due("tidy", min(self._settings.sweep_interval, shortest)):
            return Checked(repaired=repaired)
        tidied = await self._retention.tidy(self._engine, page_size=self._settings.sweep_page_size)
        if tidied.archived or tidied.deleted:
            log.info("archived %d and deleted %d finished tasks", tidied.archived, tidied.deleted)
        return Checked(repaired=repaired, archived=tidied.archived, deleted=tidied.deleted)

    async def _compact_audit(self) -> None:
        try:
            await compact_audit(self._engine, self._clock())
        except Refused as error:  # in a bucket, the credentials of a monitor may not rewrite the trail
            log.debug("the audit trail is left to qo serve and qo audit: %s", error)

    def _is_due(self, work: str, interval: float) -> bool:
        now = self._clock()
        if not self._settings.sweep_interval or 0 <= now - self._swept_at[work] < interval:
            return False
        self._swept_at[work] = now
        return True


def _retention(client: Client, settings: MonitorSettings) -> Retention:
    """The monitor's own; if that leaves it to the store, what the program beside it has said for such a store."""
    finished = settings.retention
    if finished is None and client.engine.default_retention:
        finished = client.settings.retention
    return Retention(finished=finished, failed=settings.failed_retention, window=client.settings.window)


class _Unchanged:
    """For how long notes have stayed the same, measured here: needs nobody's idea of what time it is."""

    def __init__(self, elapsed: Clock) -> None:
        self._elapsed = elapsed
        self._seen: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by name: version, and when it was first seen

    def seconds(self, note: Note) -> float:
        version, since = self._seen.pop(note.name, ("", 0.0))
        if version != note.version:
            since = self._elapsed()
        self._seen[note.name] = note.version, since
        if len(self._seen) > _MOST_WATCHED:
            self._seen.popitem(last=False)
        return self._elapsed() - since
