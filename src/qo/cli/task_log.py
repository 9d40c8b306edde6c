"""`qo logs`: the last log lines of a task's attempts."""

import asyncio
from collections.abc import Callable

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples, option
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.codec import shown_text
from qo.errors import TaskNotFound
from qo.model import FINISHED, Event, Status
from qo.terminal_text import clean_lines

_POLL_INTERVAL = 1.0  # seconds


@click.command("logs", epilog=examples("qo logs 0f0190a4-...", "qo logs ID --attempt 2", "qo logs ID --follow"))
@common
@click.argument("given_id", type=TASK_ID, metavar="ID")
@option("--attempt", type=click.IntRange(1), help="Only this attempt.  [default: all]")
@option("--follow", is_flag=True, help="Print each attempt when it ends, until the task has finished.")
def command(call: Invocation, given_id: str, *, attempt: int | None, follow: bool) -> None:
    """Show what a task's handler logged: the last 100 lines or 16 KiB of each attempt.

    The lines are stored when an attempt ends. Attempts that were cancelled or whose worker died have none.
    """

    async def work(client: Client) -> list[Event]:
        (task_id,) = await whole_ids(client, (given_id,))
        return await _logs(client, task_id, attempt, follow=follow, show=lambda event: _show(call, event))

    events = call.run(work)
    if call.json:
        call.print_json(
            [{"attempt": event.attempt, "log": shown_text(event.log or "").split("\n")} for event in events]
        )
    elif not events:
        call.console.print(Text("no log lines are stored", style="dim"))


async def _logs(
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


def _show(call: Invocation, event: Event) -> None:
    if call.json:
        return
    outcome = event.status.value
    if event.status is Status.PENDING:
        outcome = "failed, to be retried" if event.error else "handed back"
    call.console.print(Text(f"attempt {event.attempt}, {outcome}", style="bold"))
    call.console.print(Text(clean_lines(_text(event))), soft_wrap=True)


def _text(event: Event) -> str:
    return shown_text(event.log or "")
