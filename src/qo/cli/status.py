"""`qo status`: tasks as they are now."""

import sys

import click

from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.cli.output import print_error, print_json_error
from qo.cli.params import unique
from qo.cli.unhandled import Lanes, find_unhandled_of, is_unhandled
from qo.cli.views import panel
from qo.client import Client
from qo.clock import system_clock
from qo.codec import task_view
from qo.errors import DamagedTask
from qo.model import Task, check_id


@click.command("status", epilog=examples("qo status 0f0190a4-...", "qo status ID --json | jq .result"))
@common
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def command(call: Invocation, ids: tuple[str, ...]) -> int:
    """Show the status of tasks. With --json, one id gives an object and several a list.

    `unhandled` is true for a pending task if no running worker handles its type.
    """
    wanted = unique(ids)
    for task_id in wanted:
        check_id(task_id)

    damaged: list[DamagedTask] = []

    async def work(client: Client) -> tuple[list[Task | None], Lanes]:
        answers = await client.engine.get(wanted)
        for task_id, task in zip(wanted, answers, strict=True):
            if task is None:
                try:
                    await client.check_not_damaged(task_id)
                except DamagedTask as error:
                    damaged.append(error)
        return answers, await find_unhandled_of(client, answers)

    answers, unhandled = call.ask(work)
    found = [task for task in answers if task is not None]
    _show(call, found, unhandled, alone=len(ids) == 1)
    named = {error.task_id for error in damaged}
    missing = [task_id for task_id, task in zip(wanted, answers, strict=True) if task is None and task_id not in named]
    sys.stdout.flush()
    if missing:
        (print_json_error if call.json else print_error)(f"there is no task {', '.join(missing)}")
    for error in damaged:
        (print_json_error if call.json else print_error)(str(error))
    return Exit.STORAGE if damaged else Exit.NOT_FOUND if missing else Exit.CLEAN


def _show(call: Invocation, tasks: list[Task], unhandled: Lanes, *, alone: bool) -> None:
    now = system_clock()
    if not call.json:
        for task in tasks:
            call.out.print(panel(task, now, is_unhandled=is_unhandled(task, unhandled)))
        return
    views = [task_view(task, now) | {"unhandled": is_unhandled(task, unhandled)} for task in tasks]
    if not alone:
        call.answer(views)
    elif views:
        call.answer(views[0])
