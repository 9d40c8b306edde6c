"""Settles the tasks of a worker process that died.

This runs in a separate process (`python -m qo.worker.crash`, with the report on stdin), so that a store that does not
answer cannot block the supervisor.
"""

import asyncio
import sys

import msgspec

from qo.backoff import Backoff
from qo.client import Client, connect
from qo.clock import boot_clock
from qo.errors import StorageError
from qo.ids import luck
from qo.model import LOST, Change, Filter, Status, Task, after_error, cursor, lost_its_process, release, set_apart
from qo.worker.crash_report import CrashReport, CrashSettlement
from qo.worker.store_calls import bounded

_PAGE_SIZE = 500
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.2, 5.0  # seconds between attempts while the store is unreachable
_CLOSE_TIMEOUT = 2.0  # seconds


def change_of(task: Task, report: CrashReport) -> Change:
    """The change for one task of the dead process.

    A task that is no suspect is released. A single suspect fails. Of several suspects, each runs alone next time, and
    fails if it ran alone already. The same holds for a single suspect if the report is uncertain. A suspect that no
    child process can run fails at once, because it could not run alone next time, unless the report is uncertain.
    """
    if task.id not in report.suspects:
        return release(task, None)
    late = f"timed out after {report.timed_out[task.id]:g} s, and " if task.id in report.timed_out else ""
    reason = f"{late}its worker process {report.cause}"
    is_known = len(report.suspects) == 1 or task.id in report.unreachable
    if (is_known and not report.is_uncertain) or lost_its_process(task):
        return after_error(task, f"{LOST}{reason}", luck=luck())
    return set_apart(task, f"{reason} while {len(report.suspects)} tasks ran there")


async def settle(client: Client, report: CrashReport) -> CrashSettlement:
    """Fail, set apart or release every task that the dead process held. Raises StorageError."""
    engine, leases, told, after = client.engine, set(report.leases), CrashSettlement(), ""
    where = Filter(statuses=(Status.RUNNING,), worker_id=report.worker_id)
    held: list[Task] = []
    while page := await engine.find(where, limit=_PAGE_SIZE, after=after):
        held += [task for task in page if task.lease_id in leases]
        after = cursor(page[-1])
    for start in range(0, len(held), _PAGE_SIZE):
        some = held[start : start + _PAGE_SIZE]
        changes = [change_of(task, report) for task in some]
        for task, change, landed in zip(some, changes, await engine.apply(changes), strict=True):
            if landed:
                client.transitions.settled(task, change)
                told = _counted(told, change)
    return told


def _counted(told: CrashSettlement, change: Change) -> CrashSettlement:
    name = "charged" if change.failures is not None else "set_apart" if change.error is not None else "released"
    return msgspec.structs.replace(told, **{name: getattr(told, name) + 1})


async def report_crash(report: CrashReport) -> CrashSettlement:
    """Settle the tasks; retry for `report.timeout` seconds while the store is unreachable, then raise StorageError."""
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
    told = asyncio.run(report_crash(report))
    sys.stdout.buffer.write(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    main()
