"""`qo history`: everything that happened to a task."""

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples
from qo.cli.output import clean_lines, duration
from qo.cli.params import unique
from qo.cli.rich_output import data, status_text, table
from qo.client import Client
from qo.clock import iso
from qo.codec import event_view
from qo.errors import TaskNotFound
from qo.model import Event


@click.command("history", epilog=examples("qo history 0f0190a4-...", "qo history ID --json | jq '.[].status'"))
@common
@click.argument("task_id", metavar="ID")
def command(call: Invocation, task_id: str) -> None:
    """Show every transition of a task, in order."""
    (task_id,) = unique((task_id,))

    async def work(client: Client) -> list[Event]:
        events = await client.history(task_id)
        if not events and await client.get(task_id) is None:
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        return events

    events = call.ask(work)
    if call.json:
        call.answer([event_view(event) for event in events])
    else:
        _show(call, events)


def _show(call: Invocation, events: list[Event]) -> None:
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
    call.out.print(rows)


def _detail(event: Event, before: Event | None) -> Text:
    """What is new here: an error, or a wait."""
    error = event.error if event.error and (before is None or event.failures > before.failures) else None
    if error:
        lines = clean_lines(error.strip()).splitlines()
        return Text(lines[-1] if lines else "", style="red")
    wait = event.available_at - event.at
    return Text(f"due in {duration(wait)}" if event.status == "pending" and wait > 0 else "", style="dim")
