"""The monitor expires leases, marks dead workers, reviews workflows, applies retention, and runs the scheduler.

Any number of monitors may run. A note elects one leader, so that the work is not done twice. Guarded writes keep the
store correct if two monitors lead for a moment.
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
from qo.fleet_limits.known_limit import repair_limits
from qo.ids import random_fraction
from qo.model import NEW, Note
from qo.monitor.scheduler import Scheduler
from qo.monitor.settings import MonitorSettings
from qo.monitor.workflow_reviewer import WorkflowReviewer
from qo.stats import compact_stats
from qo.store_time import StoreTime
from qo.sweep import LeaseExpiry, Retention

log = logging.getLogger("qo.monitor")
_MAX_DELAY_FACTOR, _MAX_DELAY = 1.25, 2.0  # how late a check may be: a factor of the interval, plus seconds
_TERM_CHECKS = 2  # checks in the term of a leader: every second check renews it
_WORKFLOWS_INTERVAL = 900.0  # seconds between two listings of open workflows, while none is known
_COMPACT_INTERVAL = 1800.0  # seconds between two compactions of the statistics and the audit trail
_WORKER_CHECK_PERIOD = 4  # checks between two searches for dead workers
_MAX_TERM = 3600.0  # seconds; the leader of a note that stays unchanged for longer is dead
_MAX_WATCHED_NOTES = 10_000
_CANCEL_TIMEOUT = 0.5  # seconds for the scheduler to end
_DEFAULT_TERM = 900.0  # seconds, for a leader note without a term


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
    ends: float  # by the monotonic clock


class Monitor:
    def __init__(
        self,
        client: Client,
        settings: MonitorSettings | None = None,
        *,
        id: str,
        clock: Clock = system_clock,
        elapsed: Clock | None = None,  # a monotonic clock
    ) -> None:
        self._engine: Engine = client.engine
        self._settings = settings or MonitorSettings()
        self._id, self._clock = id, StoreTime(client.engine, clock)
        self._elapsed = elapsed or unset_clock(clock)
        self._unchanged = _Unchanged(self._elapsed)
        awake = elapsed or unset_clock(clock, monotonic_clock)
        self._expiry = LeaseExpiry(client.engine, client.transitions, awake, checks_ahead=True)
        self._stopping = asyncio.Event()
        self._retention = _retention(client, self._settings)
        self._workflows = WorkflowReviewer(client, self._clock, self._elapsed)
        self._swept_at = {work: float("-inf") for work in ("repair", "tidy", "compact", "workflows")}
        self._next = self._settings.check_interval  # seconds until the next check
        self._term: _Term | None = None  # while this monitor leads
        self._checks = 0
        self._scheduler = Scheduler(
            client, clock=self._clock, elapsed=self._elapsed, is_leader=lambda: self._term is not None
        )

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Check until stopped; waits while the store is unreachable.

        Raises NewerFormat when a newer qo has upgraded the store: this build can no longer use it.
        """
        scheduling = asyncio.create_task(self._scheduler.run())
        try:
            await self._check_regularly()
        finally:
            scheduling.cancel()
            await asyncio.wait([scheduling], timeout=_CANCEL_TIMEOUT)
        with contextlib.suppress(StorageError):
            await self.resign()

    async def _check_regularly(self) -> None:
        while not self._stopping.is_set():
            self._next = self._settings.check_interval * (0.9 + 0.2 * random_fraction())
            try:
                await self.check()
            except NewerFormat:
                raise
            except StorageError as error:
                log.warning("the store is unreachable: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next):
                    await self._stopping.wait()

    async def check(self) -> Checked:
        """Do one round of checks if this monitor leads. Raises StorageError."""
        await self._clock.update()
        if not await self._lead():
            await self._expiry.update_clock()  # to know of clock steps if this monitor takes over later
            return Checked(led=False)
        expired = await self._expire()
        if expired:  # otherwise the slots of dead workers are shown until a worker needs them
            await repair_limits(self._engine, self._clock())
        dead = await self._mark_dead_workers() if self._checks % _WORKER_CHECK_PERIOD == 0 else 0
        self._checks += 1
        swept = await self._sweep()
        return msgspec.structs.replace(swept, expired=expired, dead_workers=dead)

    async def check_once(self) -> Checked:
        """Do one round of checks, submit what schedules have due, then give up leadership. Raises StorageError."""
        checked = await self.check()
        await self._scheduler.check()
        await self.resign()
        return checked

    # --- leader election

    async def _lead(self) -> bool:
        """Whether this monitor leads. A leader does not read the note again before its term ends."""
        now = self._clock()
        check = _MAX_DELAY_FACTOR * self._settings.check_interval + _MAX_DELAY
        if self._term is not None and min(self._term.until - now, self._term.ends - self._elapsed()) >= check:
            return True
        version = self._term.version if self._term is not None else await self._vacancy(now)
        self._term = None
        if version is None:
            return False
        term = notes.Leader(holder=self._id, until=now + _TERM_CHECKS * check, term=_TERM_CHECKS * check)
        try:
            version = await self._engine.write_note(notes.LEADER, msgspec.json.encode(term), expected=version)
        except Conflict:
            return False
        self._term = _Term(version, term.until, self._elapsed() + term.term)
        return True

    async def _vacancy(self, now: float) -> str | None:
        """The version of the leader note to replace in order to lead; None while another monitor leads."""
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
        if unchanged > min(leader.term or _DEFAULT_TERM, _MAX_TERM):
            log.warning("monitor %s has not renewed its leadership; taking over", leader.holder)
            return note.version
        self._next = min(2 * self._settings.check_interval, leader.until - now)  # when the term ends, to take over
        return None

    async def resign(self) -> None:
        """Give up leadership, so that another monitor can lead immediately."""
        self._term = None
        note = await self._engine.read_note(notes.LEADER)
        with contextlib.suppress(
            Conflict, DamagedNote
        ):  # another monitor leads, or the next leader sets the note aside
            if note is not None and notes.decode(note, notes.Leader).holder == self._id:
                await self._engine.write_note(notes.LEADER, msgspec.json.encode(notes.Leader()), expected=note.version)

    # --- checks

    async def _expire(self) -> int:
        """Fail the attempts whose leases have expired: they are retried with back-off, or fail permanently."""
        return len(await self._expiry.expire(grace=self._settings.grace, page_size=self._settings.sweep_page_size))

    async def _mark_dead_workers(self) -> int:
        dead = 0
        for note in await self._engine.notes(notes.WORKERS):
            try:
                dead += await self._mark_if_dead(note)
            except DamagedNote as error:
                await notes.set_aside(self._engine, error)
                await self._engine.drop_note(note.name)  # a live worker writes it again
        return dead

    async def _mark_if_dead(self, note: Note) -> bool:
        """Mark a silent worker as dead, or remove its registration. Returns True if it was newly marked.

        Silence is counted from the last heartbeat or, if that is in the future, from the last change of the note.
        """
        worker = notes.decode(note, notes.WorkerNote)
        silent = self._clock() - worker.last_heartbeat - self._expiry.ahead_since(worker.last_heartbeat)
        silent = max(silent, self._unchanged.seconds(note))
        if silent > self._settings.forget_workers:
            await self._engine.drop_note(note.name)
        elif silent > self._settings.worker_health_threshold and worker.status != "dead":
            as_tombstone = msgspec.structs.replace(worker, status="dead")
            with contextlib.suppress(Conflict):  # it wrote its note again
                await self._engine.write_note(note.name, msgspec.json.encode(as_tombstone), expected=note.version)
                log.warning("worker %s has sent no heartbeat for %.0f s", worker.worker_id, silent)
                return True
        return False

    async def _sweep(self) -> Checked:
        """Repair, compact and apply retention, each at its own interval."""
        repaired = 0
        if self._is_due("repair", self._settings.sweep_interval):
            repaired = await self._engine.repair()
        if self._workflows.has_open or self._is_due(
            "workflows", max(_WORKFLOWS_INTERVAL, self._settings.sweep_interval)
        ):
            await self._workflows.check()
        if self._is_due("compact", max(_COMPACT_INTERVAL, self._settings.sweep_interval)):
            await compact_stats(self._engine, self._clock())
            await repair_limits(self._engine, self._clock())  # a worker that needs a slot does it immediately
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
        except Refused as error:  # in a bucket, a monitor's credentials need not include the audit trail
            log.debug("the audit trail is left to qo serve and qo audit: %s", error)

    def _is_due(self, work: str, interval: float) -> bool:
        now = self._clock()
        if not self._settings.sweep_interval or 0 <= now - self._swept_at[work] < interval:
            return False
        self._swept_at[work] = now
        return True


def _retention(client: Client, settings: MonitorSettings) -> Retention:
    """The monitor's retention. If it is unset and the store has a default retention, the client's setting applies."""
    finished = settings.retention
    if finished is None and client.engine.default_retention:
        finished = client.settings.retention
    return Retention(finished=finished, failed=settings.failed_retention, window=client.settings.window)


class _Unchanged:
    """Measures for how long notes have not changed, by the local monotonic clock."""

    def __init__(self, elapsed: Clock) -> None:
        self._elapsed = elapsed
        self._seen: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by name: version, and when it was first seen

    def seconds(self, note: Note) -> float:
        version, since = self._seen.pop(note.name, ("", 0.0))
        if version != note.version:
            since = self._elapsed()
        self._seen[note.name] = note.version, since
        if len(self._seen) > _MAX_WATCHED_NOTES:
            self._seen.popitem(last=False)
        return self._elapsed() - since
