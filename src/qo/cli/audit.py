"""`qo audit`: show the audit trail. Also records the actions of the other commands in it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from qo.audit import AuditPage, AuditRecord, AuditTrail, cli_user, compact_audit, new_record, read_audit
from qo.cli.context import DURATION, Invocation, Names, common, examples, flatten, option
from qo.cli.rich_output import data, table
from qo.client import Client, connect
from qo.clock import iso, system_clock
from qo.errors import OutcomeUnknown, QoError, StorageError
from qo.model import plural
from qo.store_time import StoreTime

log = logging.getLogger("qo.audit")
_RECORD_TIMEOUT = 10.0  # seconds to open a store and write one record
_MAX_LIMIT = 10_000
_IDS_SHOWN = 2
_DANGEROUS = ("delete", "token.", "clean")
_ACTORS = {"token": "cyan", "cli": "green", "page": "magenta", "user": "blue", "anyone": "yellow"}


@click.command(
    "audit",
    epilog=examples(
        "qo audit",
        "qo audit --since 24h --action delete,cancel",
        "qo audit --by ci --json | jq '.records[].action'",
        "qo audit --task 0f0190a4-...",
    ),
)
@common
@option("--since", type=DURATION, metavar="DURATION", help="Only actions of this last period: 90s, 5m, 2h, 7d.")
@option("--action", "actions", type=Names("action"), multiple=True, help="Only these actions; repeat, or use commas.")
@option("--by", "who", metavar="TEXT", help="Only actions of tokens and users whose name contains this.")
@option("--task", "task", metavar="ID", help="Only actions that name this task.")
@option("--limit", type=click.IntRange(1, _MAX_LIMIT), default=50, help="Maximum number of records.")
def command(call: Invocation, **given: Any) -> None:
    """Show who changed what in this store, newest first: replay, run-now, reschedule, priority, cancel, archive,
    delete, pause, resume, limit, drain, tokens created and revoked, and more.

    Records are kept for 90 days, up to 1,000 per day and 10,000 in total. Reading and submitting tasks and running
    workers are not recorded. A `?` after the kind of actor marks records that every role of a bucket could have
    written.
    """
    now = system_clock()
    actions = frozenset(flatten(given["actions"]))
    who, task = (given["who"] or "").casefold(), (given["task"] or "").strip().lower()

    def matches(record: AuditRecord) -> bool:
        return (
            (not actions or record.action in actions)
            and who in record.who.casefold()
            and (not task or task in record.task_ids)
        )

    async def work(client: Client) -> AuditPage:
        since = None if given["since"] is None else now - given["since"]
        page = await read_audit(client.engine, now=now, since=since, limit=given["limit"], matches=matches)
        with suppress(QoError):  # the credentials may only allow reading; monitors and servers compact it too
            await compact_audit(client.engine, now)
        return page

    page = call.run(work)
    if call.json:
        records = [record_view(record) for record in page.records]
        call.print_json(
            {"records": records, "more": page.has_more, "dropped": page.dropped, "unreadable": page.unreadable}
        )
        return
    if not page.records:
        call.console.print(Text("no matching actions", style="dim"))
    else:
        call.console.print(audit_table(page.records))
    if page.has_more:
        click.echo(f"there are older records; show them with --limit {min(_MAX_LIMIT, 10 * given['limit'])}", err=True)
    if page.dropped:
        click.echo(f"{plural(page.dropped, 'record')} of these days were removed because there were too many", err=True)
    if page.unreadable:
        click.echo(
            f"{plural(page.unreadable, 'record')} could not be read; a newer version of qo may read them", err=True
        )


def record_view(record: AuditRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "at": iso(record.at),
        "actor": record.actor,
        "who": record.who,
        "action": record.action,
        "target": record.target,
        "task_ids": list(record.task_ids),
        "number": record.number,
        "outcome": record.outcome,
        "origin": record.origin,
        "verified": record.verified,
    }


def audit_table(records: list[AuditRecord]) -> Table:
    rows = table("at", "by", "who", "action", "tasks", "what", "from", right=("tasks",))
    rows.columns[5].no_wrap = False
    rows.columns[5].overflow = "fold"
    for record in records:
        style = "red" if record.action.startswith(_DANGEROUS) else ""
        rows.add_row(
            Text((iso(record.at) or "").replace("T", " ")[:19], style="dim"),
            Text.assemble((record.actor, _ACTORS.get(record.actor, "")), ("" if record.verified else "?", "yellow")),
            data(record.who),
            Text.assemble(data(record.action, style), ("?" if record.outcome == "unknown" else "", "yellow")),
            Text("" if record.number is None else f"{record.number:,}"),
            data(_what(record)),
            data(record.origin, "dim"),
        )
    return rows


def _what(record: AuditRecord) -> str:
    if not record.task_ids or record.target:
        return record.target
    more = len(record.task_ids) - _IDS_SHOWN
    return " ".join(record.task_ids[:_IDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- recording the actions of other commands


class CliAction:
    """An action in progress. The command updates it with what it has changed so far."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.task_ids: list[str] = []
        self.number: int | None = None  # of tasks changed; None: the action does not concern tasks
        self.is_unknown = False  # True: the store may have written part of it

    def count(self, number: int) -> None:
        """Add changed tasks, after each write."""
        self.number = (self.number or 0) + number


@asynccontextmanager
async def audited(client: Client, action: str, target: str = "") -> AsyncIterator[CliAction]:
    """Record the action when the block ends, even by an error, unless it changed nothing."""
    progress = CliAction(target)
    failed = False
    try:
        yield progress
    except BaseException as error:
        failed = True
        progress.is_unknown = progress.is_unknown or isinstance(error, OutcomeUnknown)
        raise
    finally:
        changed = not failed if progress.number is None else progress.number > 0
        if changed or progress.is_unknown:
            await _record(client, action, progress)


@contextmanager
def audited_bucket(url: str, action: str, *, dry_run: bool = False) -> Iterator[CliAction]:
    """As `audited`, for a command that changes a bucket without a client. With `dry_run` nothing is recorded."""
    progress = CliAction("")
    if dry_run:
        progress.number = 0
    try:
        yield progress
    except StorageError:
        if not dry_run:
            progress.is_unknown = True  # part of it may have been written
            with suppress(QoError, TimeoutError):  # the command's own error describes the problem
                asyncio.run(_record_in(url, action, progress))
        raise
    if progress.number == 0:
        return
    try:
        asyncio.run(_record_in(url, action, progress))
    except (QoError, TimeoutError) as error:
        reason = str(error) or "no response"
        log.error("not in the audit trail (%s): %s by %s: %s", reason, action, cli_user(), progress.target)  # noqa: TRY400 - one line, as `AuditTrail` logs it


async def _record_in(url: str, action: str, progress: CliAction) -> None:
    async with asyncio.timeout(_RECORD_TIMEOUT), connect(url) as client:
        await _record(client, action, progress)


async def _record(client: Client, action: str, progress: CliAction) -> None:
    clock = StoreTime(client.engine, system_clock)
    with suppress(StorageError):  # then this machine's clock is used; `record` reports a store that is unreachable
        await clock.update()
    trail = AuditTrail(client.engine, clock=clock)
    await trail.record(
        new_record(
            at=clock(),
            actor="cli",
            who=cli_user(),
            action=action,
            target=progress.target,
            task_ids=progress.task_ids,
            number=progress.number,
            outcome="unknown" if progress.is_unknown else "done",
        )
    )


def names_in_words(**names: Sequence[str]) -> str:
    """The names an action was limited to, such as `queue mail, type crawl`."""
    return ", ".join(f"{kind} {' '.join(given)}" for kind, given in names.items() if given)
