"""Tell the store what becomes of the tasks of a worker process that died.

The store is told by a process of its own (`python -m qo.worker.crash`, the report on stdin), so that a store that does
not answer cannot hold up the supervisor.
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
from qo.worker.bounded_wait import bounded
from qo.worker.crash_report import CrashReport, Told

_PAGE = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds between two tries while the store is unreachable
_CLOSE = 2.0  # seconds a store has to let go


def change_of(task: Task, report: CrashReport) -> Change:
    """A lone suspect is charged. Of several each runs alone next time, and is charged if that was so already.

    So does a lone one that is perhaps not to blame. One that no child process can run is charged at once, because
    nothing would tell it from the others next time; unless perhaps none of them is to blame.
    """
    if task.id not in report.suspects:
        return release(task, None)
    late = f"timed out after {report.timed_out[task.id]:g} s, and " if task.id in report.timed_out else ""
    reason = f"{late}its worker process {report.cause}"
    is_known = len(report.suspects) == 1 or task.id in report.unreachable
    if (is_known and not report.is_uncertain) or lost_its_process(task):
        return after_error(task, f"{LOST}{reason}", luck=luck())
    return set_apart(task, f"{reason} while {len(report.suspects)} tasks ran there")


async def settle(client: Client, report: CrashReport) -> Told:
    """Charge, set apart or hand back every task that the dead process held."""
    engine, leases, told, after = client.engine, set(report.leases), Told(), ""
    where = Filter(statuses=(Status.RUNNING,), worker_id=report.worker_id)
    held: list[Task] = []
    while page := await engine.find(where, limit=_PAGE, after=after):
        held += [task for task in page if task.lease_id in leases]
        after = cursor(page[-1])
    for start in range(0, len(held), _PAGE):
        some = held[start : start + _PAGE]
        changes = [change_of(task, report) for task in some]
        for task, change, landed in zip(some, changes, await engine.apply(changes), strict=True):
            if landed:
                client.transitions.settled(task, change)
                told = _counted(told, change)
    return told


def _counted(told: Told, change: Change) -> Told:
    name = "charged" if change.failures is not None else "set_apart" if change.error is not None else "released"
    return msgspec.structs.replace(told, **{name: getattr(told, name) + 1})


async def report_crash(report: CrashReport) -> Told:
    """Tell the store, however long it is away within the report's patience."""
    until, backoff = boot_clock() + report.patience, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        queue = connect(report.url)
        try:
            await queue.open()
            return await settle(queue, report)
        except StorageError:
            if boot_clock() + backoff.upcoming > until:
                raise
        finally:
            await bounded(queue.close(), _CLOSE)
        await asyncio.sleep(backoff.next())


def main() -> None:
    report = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CrashReport)
    told = asyncio.run(report_crash(report))
    sys.stdout.buffer.write(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    main()
