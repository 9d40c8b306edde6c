"""`qo resume`: let workers start tasks again."""

import click

from qo.cli.audited import audited, names_in_words
from qo.cli.context import Invocation, common, examples, option
from qo.cli.controls import answer
from qo.cli.params import TYPES, Names, together
from qo.client import Client
from qo.notes import Controls


@click.command("resume", epilog=examples("qo resume", "qo resume --queue mail --type crawl"))
@common
@option("--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas.")
@option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")
def command(call: Invocation, queues: tuple[tuple[str, ...], ...], types: tuple[tuple[str, ...], ...]) -> None:
    """Undo `qo pause`: of some queues or types, or, without any, of everything.

    Workers notice within a second or two.
    """

    async def work(client: Client) -> Controls:
        some = {"queues": together(queues), "types": together(types)}
        async with audited(client, "resume", names_in_words(**some)):
            return await client.controls.resume(**some)

    answer(call, call.ask(work))
