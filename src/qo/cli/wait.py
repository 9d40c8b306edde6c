"""`qo wait`: wait until tasks have finished. The exit code tells the outcome."""

import asyncio

import click

from qo.cli.context import DURATION, Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.submit import show_result
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.clock import system_clock
from qo.codec import task_view
from qo.model import Status, Task


@click.command("wait", epilog=examples("qo wait 0f0190a4 --timeout 5m && echo done", "qo wait ID --json | jq .result"))
@common
@click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
@option("--timeout", type=DURATION, help="Wait for at most this long: 90, 90s, 5m, 2h.")
def command(call: Invocation, ids: tuple[str, ...], timeout: float | None) -> int:
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
