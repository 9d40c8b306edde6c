"""`qo list`: tasks, newest first, page by page."""

import shlex
from typing import Any

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import plural
from qo.cli.params import STATUS, TYPES, Names, Shards, together
from qo.cli.unhandled import Lanes, by_type, find_unhandled_of, is_unhandled, unhandled_note
from qo.cli.views import task_table
from qo.client import Client
from qo.clock import system_clock
from qo.codec import task_view
from qo.model import Filter, Status, Task, cursor

MOST = 10_000
Page = tuple[list[Task], str | None]


@click.command(
    "list",
    epilog=examples(
        "qo list --status failed",
        "qo list --type send_email,report --limit 10",
        "qo list --all-pages --json | jq '.tasks[].id'",
    ),
)
@common
@option(
    "--status",
    "statuses",
    type=STATUS,
    multiple=True,
    help="Only these; repeat for several.  [default: all but archived]",
)
@option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")
@option("--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas.")
@option("--worker", "worker_id", metavar="ID", help="Only tasks this worker runs or ran last.")
@option("--shard", "shards", type=Shards(), help="Only ids that begin with these digits: 0, 0,8,f or 0-7.")
@option("--limit", type=click.IntRange(1, MOST), default=50, help="Tasks per page.")
@option("--after", metavar="CURSOR", default="", help="Start after this position: the `next` of the previous page.")
@option("--all-pages", is_flag=True, help="All pages, not only the first.")
def command(
    call: Invocation, *, shards: frozenset[str] | None, limit: int, after: str, all_pages: bool, **given: Any
) -> None:
    """List tasks, newest first. Archived ones are left out unless asked for.

    With --json: {"tasks": [...], "next": cursor or null}. `unhandled` is true for a pending task if no running worker
    handles its type.
    """
    where = _filter(shards=tuple(sorted(shards or ())), **given)

    async def work(client: Client) -> tuple[Page, Lanes]:
        page = await pages(client, where, most=None if all_pages else limit, after=after)
        return page, await find_unhandled_of(client, page[0])

    (tasks, following), unhandled = call.ask(work)
    if call.json:
        now = system_clock()
        views = [task_view(task, now) | {"unhandled": is_unhandled(task, unhandled)} for task in tasks]
        call.answer({"tasks": views, "next": following})
    else:
        _show(call, tasks, following, unhandled)


def _filter(
    statuses: tuple[str, ...],
    types: tuple[tuple[str, ...], ...],
    queues: tuple[tuple[str, ...], ...],
    worker_id: str | None,
    shards: tuple[str, ...],
) -> Filter:
    chosen = [Status(status) for status in statuses] or [status for status in Status if status is not Status.ARCHIVED]
    return Filter(
        statuses=tuple(chosen), types=together(types), queues=together(queues), worker_id=worker_id, shards=shards
    )


async def pages(client: Client, where: Filter, *, most: int | None, after: str) -> Page:
    """Up to `most` tasks, and where the next page starts. Reads one more, so a full last page names no next."""
    found: list[Task] = []
    size = 500 if most is None else most + 1
    while page := await client.list(where, limit=size, after=after):
        for task in page:
            if most is not None and len(found) == most:
                return found, cursor(found[-1])
            found.append(task)
        if len(page) < size:
            break
        after = cursor(page[-1])
    return found, None


def _show(call: Invocation, tasks: list[Task], following: str | None, unhandled: Lanes) -> None:
    if not tasks:
        call.out.print(Text("no tasks", style="dim"))
        return
    call.out.print(task_table(tasks, system_clock(), width=call.out.width))
    shown = {(task.queue, task.type) for task in tasks if is_unhandled(task, unhandled)}
    if shown:
        call.out.print(unhandled_note(by_type({lane: unhandled[lane] for lane in shown})), soft_wrap=True)
    if following is not None:
        more = f"{plural(len(tasks))} shown; more with --after {shlex.quote(following)} or --all-pages"
        call.out.print(Text(more, style="dim"), soft_wrap=True)
