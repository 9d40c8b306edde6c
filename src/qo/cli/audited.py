"""Actions of the command line, recorded in the store's audit trail under the user of this machine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from qo.audit import AuditTrail, cli_user, new_record
from qo.client import Client, connect
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, QoError, StorageError
from qo.store_time import StoreTime

log = logging.getLogger("qo.audit")
_TIMEOUT = 10.0  # seconds to open a queue and write one record


class CliAction:
    """One action under way. A command fills in what it has changed so far."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.task_ids: list[str] = []
        self.number: int | None = None  # tasks changed; None: this action is not about tasks
        self.is_unknown = False  # True: the store may or may not have taken part of it


@asynccontextmanager
async def audited(client: Client, action: str, target: str = "") -> AsyncIterator[CliAction]:
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
            await _record(client, action, doing)


@contextmanager
def audited_bucket(url: str, action: str, *, dry_run: bool = False) -> Iterator[CliAction]:
    """The same for a command that works on a bucket without opening its queue. With `dry_run` nothing is recorded."""
    doing = CliAction("")
    if dry_run:
        doing.number = 0
    try:
        yield doing
    except StorageError:
        if not dry_run:
            doing.is_unknown = True  # part of it may be done
            with suppress(QoError, TimeoutError):  # the command's own error says what is wrong with the store
                asyncio.run(_record_in(url, action, doing))
        raise
    if doing.number == 0:
        return
    try:
        asyncio.run(_record_in(url, action, doing))
    except (QoError, TimeoutError) as error:
        said = str(error) or "no answer"
        log.error("not in the audit trail (%s): %s by %s: %s", said, action, cli_user(), doing.target)  # noqa: TRY400 - as in the trail


async def _record_in(url: str, action: str, doing: CliAction) -> None:
    async with asyncio.timeout(_TIMEOUT), connect(url) as client:
        await _record(client, action, doing)


async def _record(client: Client, action: str, doing: CliAction) -> None:
    clock = StoreTime(client.engine, system_clock)
    with suppress(StorageError):  # else by this machine's clock; the trail says if the store is unreachable
        await clock.look()
    trail = AuditTrail(client.engine, clock=clock)
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
