"""Actions of the command line, recorded in the store's audit trail under the user of this machine."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from qo.audit import AuditTrail, cli_user, new_record
from qo.client import Client
from qo.client.store_time import StoreTime
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, StorageError


class CliAction:
    """One action under way. A command fills in what it has changed so far."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.task_ids: list[str] = []
        self.number: int | None = None  # tasks changed; None: this action is not about tasks
        self.is_unknown = False  # True: the store may or may not have taken part of it


@asynccontextmanager
async def audited(queue: Client, action: str, target: str = "") -> AsyncIterator[CliAction]:
    """Record the action once it is done, also one that failed half-way. One that changed nothing is not recorded."""
    doing = CliAction(target)
    failed = False
    try:
        yield doing
    except BaseException as error:
        failed = True
        doing.is_unknown = doing.is_unknown or isinstance(error, OutcomeUnknown)
        raise
    finally:
        changed = not failed if doing.number is None else doing.number > 0
        if changed or doing.is_unknown:
            await _record(queue, action, doing)


async def _record(queue: Client, action: str, doing: CliAction) -> None:
    clock = StoreTime(queue.engine, system_clock)
    with suppress(StorageError):  # else by this machine's clock; the trail says if the store is away
        await clock.look()
    trail = AuditTrail(queue.engine, clock=clock)
    await trail.record(
        new_record(
            at=clock(),
            actor="cli",
            who=cli_user(),
            action=action,
            target=doing.target,
            task_ids=doing.task_ids,
            number=doing.number,
            outcome="unknown" if doing.is_unknown else "done",
        )
    )


def names_in_words(**names: Sequence[str]) -> str:
    """What an action was limited to: `queue mail, type crawl`."""
    return ", ".join(f"{kind} {' '.join(given)}" for kind, given in names.items() if given)
