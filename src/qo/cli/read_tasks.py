"""`qo status`, `history` and `list`: read tasks."""

import shlex
import sys
from typing import Any

import click
from rich.text import Text

from qo.cli.context import STATUS, TYPES, Invocation, Names, Shards, common, examples, flatten, option, unique
from qo.cli.exit_codes import Exit
from qo.cli.output import clean_lines, duration, plural, print_error, print_json_error
from qo.cli.rich_output import (
    Lanes,
    by_type,
    data,
    find_unhandled_of,
    panel,
    status_text,
    table,
    task_table,
    unhandled_note,
)
from qo.client import Client
from qo.clock import iso, system_clock
from qo.codec import event_view, task_view
from qo.errors import DamagedTask, TaskNotFound
from qo.handled_types import is_unhandled
from qo.model import Event, Filter, Status, Task, check_id, cursor

_MAX_LIMIT = 10_000
_PAGE_SIZE = 500  # tasks per call with --all-pages
Page = tuple[list[Task], str | None]


@click.command("status", epilog=examples("qo status 0f0190a4-...", "qo status ID --json | jq .result"))
@common
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def status(call: Invocation, ids: tuple[str, ...]) -> int:
    """Show the status of tasks. With --json: an object for one id, a list for several.

    `unhandled` is true for a pending task if no running worker handles its type.
    """
    task_ids = unique(ids)
    for task_id in task_ids:
        check_id(task_id)

    damaged: list[DamagedTask] = []

    async def work(client: Client) -> tuple[list[Task | None], Lanes]:
        tasks = await client.engine.get(task_ids)
        for task_id, task in zip(task_ids, tasks, strict=True):
            if task is None:
                try:
                    await client.check_not_damaged(task_id)
                except DamagedTask as error:
                    damaged.append(error)
        return tasks, await find_unhandled_of(client, tasks)

    tasks, unhandled = call.run(work)
    found = [task for task in tasks if task is not None]
    _show_tasks(call, found, unhandled, alone=len(ids) == 1)
    damaged_ids = {error.task_id for error in damaged}
    missing = [
        task_id for task_id, task in zip(task_ids, tasks, strict=True) if task is None and task_id not in damaged_ids
    ]
    sys.stdout.flush()
    if missing:
        (print_json_error if call.json else print_error)(f"there is no task {', '.join(missing)}")
    for error in damaged:
        (print_json_error if call.json else print_error)(str(error))
    return Exit.STORAGE if damaged else Exit.NOT_FOUND if missing else Exit.CLEAN


def _show_tasks(call: Invocation, tasks: list[Task], unhandled: Lanes, *, alone: bool) -> None:
    now = system_clock()
    if not call.json:
        for task in tasks:
            call.console.print(panel(task, now, is_unhandled=is_unhandled(task, unhandled)))
        return
    views = [task_view(task, now) | {"unhandled": is_unhandled(task, unhandled)} for task in tasks]
    if not alone:
        call.print_json(views)
    elif views:
        call.print_json(views[0])


@click.command("history", epilog=examples("qo history 0f0190a4-...", "qo history ID --json | jq '.[].status'"))
@common
@click.argument("task_id", metavar="ID")
def history(call: Invocation, task_id: str) -> None:
    """Show every transition of a task, in order."""
    (task_id,) = unique((task_id,))

    async def work(client: Client) -> list[Event]:
        events = await client.history(task_id)
        if not events and await client.get(task_id) is None:
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        return events

    events = call.run(work)
    if call.json:
        call.print_json([event_view(event) for event in events])
    else:
        _show_history(call, events)


def _show_history(call: Invocation, events: list[Event]) -> None:
    rows = table("at", "after", "status", "try", "fails", "worker", "", right=("after", "try", "fails"))
    rows.columns[-1].no_wrap = False
    rows.columns[-1].overflow = "fold"
    before: Event | None = None
    for event in events:
        rows.add_row(
            Text((iso(event.at) or "").replace("T", " ")[:19], style="dim"),
            Text("" if before is None else f"+{duration(event.at - before.at)}", style="dim"),
            status_text(event.status),
            str(event.attempt),
            str(event.failures),
            data(event.worker_id or "", "dim"),
            _detail(event, before),
        )
        before = event
    call.console.print(rows)


def _detail(event: Event, before: Event | None) -> Text:
    """The new error of this event, or the delay until the task is due."""
    error = event.error if event.error and (before is None or event.failures > before.failures) else None
    if error:
        lines = clean_lines(error.strip()).splitlines()
        return Text(lines[-1] if lines else "", style="red")
    delay = event.available_at - event.at
    return Text(f"due in {duration(delay)}" if event.status == "pending" and delay > 0 else "", style="dim")


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
    help="Only tasks with this status; repeat for more.  [default: all but archived]",
)
@option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")
@option("--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas.")
@option("--worker", "worker_id", metavar="ID", help="Only tasks that this worker runs or ran last.")
@option("--shard", "shards", type=Shards(), help="Only ids that begin with these digits: 0, 0,8,f or 0-7.")
@option("--limit", type=click.IntRange(1, _MAX_LIMIT), default=50, help="Tasks per page.")
@option("--after", metavar="CURSOR", default="", help="Start after this position, the `next` of the previous page.")
@option("--all-pages", is_flag=True, help="Print all pages, not only the first.")
def list_(
    call: Invocation, *, shards: frozenset[str] | None, limit: int, after: str, all_pages: bool, **given: Any
) -> None:
    """List tasks, newest first. Archived tasks are only listed with --status archived.

    With --json: {"tasks": [...], "next": cursor or null}. `unhandled` is true for a pending task if no running worker
    handles its type.
    """
    where = _filter(shards=tuple(sorted(shards or ())), **given)

    async def work(client: Client) -> tuple[Page, Lanes]:
        page = await _read_pages(client, where, limit=None if all_pages else limit, after=after)
        return page, await find_unhandled_of(client, page[0])

    (tasks, next_position), unhandled = call.run(work)
    if call.json:
        now = system_clock()
        views = [task_view(task, now) | {"unhandled": is_unhandled(task, unhandled)} for task in tasks]
        call.print_json({"tasks": views, "next": next_position})
    else:
        _show_page(call, tasks, next_position, unhandled)


def _filter(
    statuses: tuple[str, ...],
    types: tuple[tuple[str, ...], ...],
    queues: tuple[tuple[str, ...], ...],
    worker_id: str | None,
    shards: tuple[str, ...],
) -> Filter:
    selected = [Status(status) for status in statuses] or [status for status in Status if status is not Status.ARCHIVED]
    return Filter(
        statuses=tuple(selected), types=flatten(types), queues=flatten(queues), worker_id=worker_id, shards=shards
    )


async def _read_pages(client: Client, where: Filter, *, limit: int | None, after: str) -> Page:
    """Up to `limit` tasks, or all of them, and the position of the next page if there is one."""
    found: list[Task] = []
    size = _PAGE_SIZE if limit is None else limit + 1  # one more tells whether there is a next page
    while page := await client.list(where, limit=size, after=after):
        for task in page:
            if limit is not None and len(found) == limit:
                return found, cursor(found[-1])
            found.append(task)
        if len(page) < size:
            break
        after = cursor(page[-1])
    return found, None


def _show_page(call: Invocation, tasks: list[Task], next_position: str | None, unhandled: Lanes) -> None:
    if not tasks:
        call.console.print(Text("no tasks", style="dim"))
        return
    call.console.print(task_table(tasks, system_clock(), width=call.console.width))
    shown = {(task.queue, task.type) for task in tasks if is_unhandled(task, unhandled)}
    if shown:
        call.console.print(unhandled_note(by_type({lane: unhandled[lane] for lane in shown})), soft_wrap=True)
    if next_position is not None:
        more = f"{plural(len(tasks))} shown; more with --after {shlex.quote(next_position)} or --all-pages"
        call.console.print(Text(more, style="dim"), soft_wrap=True)
