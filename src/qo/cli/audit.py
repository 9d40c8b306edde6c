"""`qo audit`: who did what."""

from contextlib import suppress
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from qo.audit import AuditPage, AuditRecord, compact_audit, read_audit
from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import plural
from qo.cli.params import DURATION, Names, together
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.errors import QoError

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
@option("--since", type=DURATION, metavar="DURATION", help="Only actions of the last 90s, 5m, 2h, 7d.")
@option("--action", "actions", type=Names("action"), multiple=True, help="Only these actions; repeat, or use commas.")
@option("--by", "who", metavar="TEXT", help="Only by tokens and users whose name contains this.")
@option("--task", "task", metavar="ID", help="Only actions that name this task.")
@option("--limit", type=click.IntRange(1, _MAX_LIMIT), default=50, help="Maximum number of records.")
def command(call: Invocation, **given: Any) -> None:
    """Show who did what to this queue, newest first: replay, cancel, archive, delete, pause, resume, limit, drain,
    tokens created and revoked, and more.

    Kept for 90 days, up to 1,000 actions a day and 10,000 in all. Reading, submitting and working are not recorded.
    A `?` after the kind of actor: written with credentials that may only add records, so it proves nothing.
    """
    now = system_clock()
    wanted = frozenset(together(given["actions"]))
    who, task = (given["who"] or "").casefold(), (given["task"] or "").strip().lower()

    def matches(record: AuditRecord) -> bool:
        return (
            (not wanted or record.action in wanted)
            and who in record.who.casefold()
            and (not task or task in record.task_ids)
        )

    async def work(client: Client) -> AuditPage:
        since = None if given["since"] is None else now - given["since"]
        page = await read_audit(client.engine, now=now, since=since, limit=given["limit"], matches=matches)
        with suppress(QoError):  # credentials that may only look; a monitor or a server does it, too
            await compact_audit(client.engine, now)
        return page

    page = call.ask(work)
    if call.json:
        records = [record_view(record) for record in page.records]
        call.answer({"records": records, "more": page.has_more, "dropped": page.dropped, "unreadable": page.unreadable})
        return
    if not page.records:
        call.out.print(Text("nothing was done that matches", style="dim"))
    else:
        call.out.print(audit_table(page.records))
    if page.has_more:
        click.echo(f"there are older ones; see them with --limit {min(_MAX_LIMIT, 10 * given['limit'])}", err=True)
    if page.dropped:
        click.echo(f"{plural(page.dropped, 'action')} of these days were removed because there were too many", err=True)
    if page.unreadable:
        click.echo(f"{plural(page.unreadable, 'record')} cannot be read; a newer qo may be able to", err=True)


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
