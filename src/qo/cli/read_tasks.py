"""`qo status`, `history`, `logs`, `explain` and `wait`: read tasks by id."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from qo.cli.context import DURATION, Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.output import duration, print_error, print_json_error
from qo.cli.rich_output import (
    STYLES,
    data,
    find_unhandled_of,
    panel,
    status_text,
    table,
)
from qo.cli.submit import show_result
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.clock import iso, system_clock
from qo.codec import event_view, shown_text, task_view
from qo.errors import DamagedTask, TaskNotFound
from qo.explanation import Explanation
from qo.handled_types import Lanes, is_unhandled
from qo.model import BLOCKED_AT, FINISHED, Event, Status, Task
from qo.safe_text import clean, clean_lines

_MAX_LIMIT = 10_000
_PAGE_SIZE = 500  # tasks per call with --all-pages
Page = tuple[list[Task], str | None]
_POLL_INTERVAL = 1.0  # seconds


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
    if event.available_at == BLOCKED_AT:
        return Text("waits for its parent tasks" if event.status is Status.PENDING else "", style="dim")
    delay = event.available_at - event.at
    return Text(f"due in {duration(delay)}" if event.status == "pending" and delay > 0 else "", style="dim")


@click.command("logs", epilog=examples("qo logs 0f0190a4-...", "qo logs ID --attempt 2", "qo logs ID --follow"))
@common
@click.argument("given_id", type=TASK_ID, metavar="ID")
@option("--attempt", type=click.IntRange(1), help="Only this attempt.  [default: all]")
@option("--follow", is_flag=True, help="Print each attempt when it ends, until the task has finished.")
def logs(call: Invocation, given_id: str, *, attempt: int | None, follow: bool) -> None:
    """Show what a task's handler logged: the last 100 lines or 16 KiB of each attempt.

    The lines are stored when an attempt ends. Attempts that were cancelled or whose worker died have none.
    """

    async def work(client: Client) -> list[Event]:
        (task_id,) = await whole_ids(client, (given_id,))
        return await _read_logs(client, task_id, attempt, follow=follow, show=lambda event: _show_log(call, event))

    events = call.run(work)
    if call.json:
        call.print_json(
            [{"attempt": event.attempt, "log": shown_text(event.log or "").split("\n")} for event in events]
        )
    elif not events:
        call.console.print(Text("no log lines are stored", style="dim"))


async def _read_logs(
    client: Client, task_id: str, attempt: int | None, *, follow: bool, show: Callable[[Event], None]
) -> list[Event]:
    shown: dict[int, Event] = {}
    while True:
        task = await client.get(task_id)
        if task is None:
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        for event in await client.history(task_id):
            if event.log and event.version not in shown and attempt in (None, event.attempt):
                shown[event.version] = event
                show(event)
        if not follow or task.status in FINISHED or (attempt is not None and shown):
            return list(shown.values())
        await asyncio.sleep(_POLL_INTERVAL)


def _show_log(call: Invocation, event: Event) -> None:
    if call.json:
        return
    outcome = event.status.value
    if event.status is Status.PENDING:
        outcome = "failed, to be retried" if event.error else "handed back"
    call.console.print(Text(f"attempt {event.attempt}, {outcome}", style="bold"))
    call.console.print(Text(clean_lines(_log_text(event))), soft_wrap=True)


def _log_text(event: Event) -> str:
    return shown_text(event.log or "")


@click.command("explain", epilog=examples("qo explain 0f0190a4", "qo explain ID --json | jq -r '.reasons[].text'"))
@common
@click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
def explain(call: Invocation, ids: tuple[str, ...]) -> None:
    """Explain why tasks wait: paused, due later, no worker for the type or capability, all slots busy, others ahead.

    With --json: an object for one id, a list for several. A reason has a `kind`, a `text`, and `is_blocking`, which is
    true if the task cannot start while the reason persists.
    """

    async def work(client: Client) -> list[Explanation]:
        return [await client.explain(task_id) for task_id in await whole_ids(client, ids)]

    found = call.run(work)
    if call.json:
        views = [explanation_view(each) for each in found]
        call.print_json(views[0] if len(ids) == 1 else views)
        return
    for each in found:
        title = Text.assemble(each.task_id, " ", (each.kind or each.status, STYLES[each.status]))
        call.console.print(title, soft_wrap=True)
        for reason in each.reasons:
            line = Text(f"  {clean(reason.text)}", style="yellow" if reason.is_blocking else "")
            call.console.print(line, soft_wrap=True)


def explanation_view(explanation: Explanation) -> dict[str, Any]:
    return {
        "id": explanation.task_id,
        "status": explanation.status.value,
        "pending_kind": None if explanation.kind is None else explanation.kind.value,
        "reasons": [
            {"kind": reason.kind, "text": reason.text, "is_blocking": reason.is_blocking}
            for reason in explanation.reasons
        ],
    }


@click.command("wait", epilog=examples("qo wait 0f0190a4 --timeout 5m && echo done", "qo wait ID --json | jq .result"))
@common
@click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
@option("--timeout", type=DURATION, help="Wait for at most this long: 90, 90s, 5m, 2h.")
def wait(call: Invocation, ids: tuple[str, ...], timeout: float | None) -> int:
    """Wait until tasks have finished, and show their results.

    The exit code is 0 if all of them completed, and 1 if one failed, was cancelled, or has not finished in time.
    """

    async def work(client: Client) -> list[Task]:
        waiting = [client.ended(task_id, timeout=timeout) for task_id in await whole_ids(client, ids)]
        return await asyncio.gather(*waiting)

    tasks = call.run(work)
    if call.json:
        views = [task_view(task, system_clock()) for task in tasks]
        call.print_json(views[0] if len(ids) == 1 else views)
    else:
        for task in tasks:
            show_result(call, task)
    return Exit.CLEAN if all(task.ended_as is Status.COMPLETED for task in tasks) else Exit.ERROR
