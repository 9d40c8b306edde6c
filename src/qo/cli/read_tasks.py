"""`qo status` and `history`: read tasks by id."""

import sys

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.cli.output import duration, print_error, print_json_error
from qo.cli.rich_output import (
    Lanes,
    data,
    find_unhandled_of,
    panel,
    status_text,
    table,
)
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.clock import iso, system_clock
from qo.codec import event_view, shown_text, task_view
from qo.errors import DamagedTask, TaskNotFound
from qo.handled_types import is_unhandled
from qo.model import Event, Task
from qo.terminal_text import clean_lines

_MAX_LIMIT = 10_000
_PAGE_SIZE = 500  # tasks per call with --all-pages
Page = tuple[list[Task], str | None]


@click.command("status", epilog=examples("qo status 0f0190a4-...", "qo status ID --json | jq .result"))
@common
@click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
def status(call: Invocation, ids: tuple[str, ...]) -> int:
    """Show the status of tasks. With --json: an object for one id, a list for several.

    `unhandled` is true for a pending task if no running worker handles its type.
    """
    damaged: list[DamagedTask] = []

    async def work(client: Client) -> tuple[tuple[str, ...], list[Task | None], Lanes]:
        task_ids = await whole_ids(client, ids)
        tasks = await client.engine.get(task_ids)
        for task_id, task in zip(task_ids, tasks, strict=True):
            if task is None:
                try:
                    await client.check_not_damaged(task_id)
                except DamagedTask as error:
                    damaged.append(error)
        return task_ids, tasks, await find_unhandled_of(client, tasks)

    task_ids, tasks, unhandled = call.run(work)
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
@click.argument("given_id", type=TASK_ID, metavar="ID")
def history(call: Invocation, given_id: str) -> None:
    """Show every transition of a task, in order."""

    async def work(client: Client) -> list[Event]:
        (task_id,) = await whole_ids(client, [given_id])
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
        lines = clean_lines(shown_text(error).strip()).splitlines()
        return Text(lines[-1] if lines else "", style="red")
    delay = event.available_at - event.at
    return Text(f"due in {duration(delay)}" if event.status == "pending" and delay > 0 else "", style="dim")
