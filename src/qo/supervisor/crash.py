"""Settles the tasks of a worker process that died.

The supervisor builds a report and starts `python -m qo.supervisor.crash` with the report on stdin. That process opens
the store, so a store that does not answer cannot block the supervisor.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.engine import find_pages
from qo.errors import StorageError
from qo.executors.run_table import RunEntry
from qo.ids import random_fraction
from qo.model import (
    LOST,
    Change,
    FailureKind,
    Filter,
    Status,
    Task,
    after_error,
    lost_its_process,
    plural,
    release,
    set_apart,
)
from qo.tasks import Executor
from qo.worker.waits import bounded

if TYPE_CHECKING:
    from qo.client import Client

log = logging.getLogger("qo.supervisor")
_REPORT_MARGIN = 10.0  # seconds beyond the report's timeout, after which the process is killed
_PAGE_SIZE = 500
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.2, 5.0  # seconds between attempts while the store is unreachable
_CLOSE_TIMEOUT = 2.0  # seconds


class CrashReport(Struct, frozen=True, kw_only=True):
    url: str
    worker_id: str
    leases: list[str]  # ids of the leases the dead process claimed
    cause: str  # as the end of a sentence: "was killed by SIGSEGV"
    suspects: list[str]  # tasks one of which caused the death, including settled ones whose handlers still ran
    is_uncertain: bool = False  # possibly none of the suspects is the cause
    unreachable: list[str] = []  # suspects that no child process can run
    timed_out: dict[str, float] = {}  # suspects that exceeded their timeout, and the timeout
    timeout: float = 60.0  # seconds for the store to answer


class CrashSettlement(Struct, frozen=True, kw_only=True):
    """How many tasks failed, will run alone, and were released."""

    charged: int = 0
    set_apart: int = 0
    released: int = 0


def suspects_of(runs: Iterable[RunEntry], holder: int | None) -> list[RunEntry]:
    """The runs that may have caused the death. `holder` is the thread that held the GIL, if known.

    A handler in a child process is unlikely to kill the worker, so it is a suspect only if there is no other.
    """
    runs = list(runs)
    inside = [run for run in runs if run.executor is not Executor.PROCESS]
    holding = [run for run in inside if run.thread == holder]
    return holding or inside or runs


# --- in the supervisor


async def send(report: CrashReport) -> None:
    """Settle the tasks of a report in a separate process, within the report's timeout. Logs the result."""
    # -P keeps files of the program from being imported.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, *safe, "-m", "qo.supervisor.crash", stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        async with asyncio.timeout(report.timeout + _REPORT_MARGIN):
            out, errors = await process.communicate(msgspec.msgpack.encode(report))
    except TimeoutError:
        out, errors = b"", b"the store does not answer"
    finally:
        if process.returncode is None:
            process.kill()
    about = {"worker_id": report.worker_id}
    if process.returncode == 0:
        settlement = msgspec.msgpack.decode(out, type=CrashSettlement)
        for line in errors.decode(errors="replace").splitlines():  # its log: one line per task
            log.warning("%s", line, extra=about)
        log.warning(
            "worker %s %s: %d of its tasks failed, %d will run alone, %d were handed back",
            report.worker_id, report.cause, settlement.charged, settlement.set_apart, settlement.released, extra=about,
        )  # fmt: skip
    else:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no output"]
        log.error(
            "cannot settle the tasks of worker %s: %s; they run again when their leases expire",
            report.worker_id, lines[-1], extra=about,
        )  # fmt: skip


# --- in the separate process


def change_of(task: Task, report: CrashReport) -> Change:
    """The change for one task of the dead process.

    A task that is no suspect is released. A single suspect fails. Of several suspects, each runs alone next time, and
    fails if it ran alone already. The same holds for a single suspect if the report is uncertain. A suspect that no
    child process can run fails immediately, unless the report is uncertain, because it could not run alone next time.
    """
    if task.id not in report.suspects:
        return release(task, None)
    late = f"timed out after {report.timed_out[task.id]:g} s, and " if task.id in report.timed_out else ""
    reason = f"{late}its worker process {report.cause}"
    is_known = len(report.suspects) == 1 or task.id in report.unreachable
    if (is_known and not report.is_uncertain) or lost_its_process(task):
        return after_error(task, f"{LOST}{reason}", kind=FailureKind.LOST, random=random_fraction())
    return set_apart(task, f"{reason} while {plural(len(report.suspects))} ran there")


async def settle(client: "Client", report: CrashReport) -> CrashSettlement:
    """Fail, set apart or release every task that the dead process held. Raises StorageError."""
    engine, leases, settlement = client.engine, set(report.leases), CrashSettlement()
    where = Filter(statuses=(Status.RUNNING,), worker_id=report.worker_id)
    pages = find_pages(engine, where, page_size=_PAGE_SIZE)
    held = [task async for page in pages for task in page if task.lease_id in leases]
    for start in range(0, len(held), _PAGE_SIZE):
        some = held[start : start + _PAGE_SIZE]
        changes = [change_of(task, report) for task in some]
        for task, change, landed in zip(some, changes, await engine.apply(changes), strict=True):
            if landed:
                client.transitions.settled(task, change)
                settlement = _counted(settlement, change)
    return settlement


def _counted(settlement: CrashSettlement, change: Change) -> CrashSettlement:
    name = "charged" if change.failures is not None else "set_apart" if change.error is not None else "released"
    return msgspec.structs.replace(settlement, **{name: getattr(settlement, name) + 1})


async def report_crash(report: CrashReport) -> CrashSettlement:
    """Settle the tasks; retry for `report.timeout` seconds while the store is unreachable, then raise StorageError."""
    from qo.client import connect  # noqa: PLC0415 - the supervisor imports this module and opens no store

    until, backoff = boot_clock() + report.timeout, Backoff(_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE)
    while True:
        client = connect(report.url)
        try:
            await client.open()
            return await settle(client, report)
        except StorageError:
            if boot_clock() + backoff.upcoming > until:
                raise
        finally:
            await bounded(client.close(), _CLOSE_TIMEOUT)
        await asyncio.sleep(backoff.next())


def main() -> None:
    report = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CrashReport)
    settlement = asyncio.run(report_crash(report))
    sys.stdout.buffer.write(msgspec.msgpack.encode(settlement))


if __name__ == "__main__":
    main()
