"""`qo limit`: how many tasks a worker may start a second."""

import click

from qo.cli.audited import audited
from qo.cli.context import Call, common, examples, option
from qo.cli.switching import answer
from qo.notes import Control
from qo.queue import Queue


@click.command("limit", epilog=examples("qo limit 100", "qo limit 5 --type send_email", "qo limit 0        # no limit"))
@common
@click.argument("rate", type=float)
@option("--type", "type_", metavar="NAME", help="Only tasks of this type, instead of what the code says.")
def command(call: Call, rate: float, type_: str | None) -> None:
    """Let each worker start at most RATE tasks a second, in all or of one type; 0 lifts the limit."""

    async def work(queue: Queue) -> Control:
        async with audited(queue, "limit", f"{rate:g} a second" + (f", type {type_}" if type_ else "")):
            return await queue.switches.limit_rate(rate, type=type_)

    answer(call, call.ask(work))
