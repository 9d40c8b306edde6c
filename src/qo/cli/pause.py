"""`qo pause`: stop workers from starting tasks."""

import click

from qo.cli.audited import audited, names_in_words
from qo.cli.context import Invocation, common, examples, option
from qo.cli.controls import answer
from qo.cli.params import TYPES, Names, together
from qo.client import Client
from qo.notes import Controls


@click.command("pause", epilog=examples("qo pause", "qo pause --queue mail --type crawl"))
@common
@option("--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas.")
@option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")
def command(call: Invocation, queues: tuple[tuple[str, ...], ...], types: tuple[tuple[str, ...], ...]) -> None:
    """Stop all workers from starting tasks, or only those of some queues or types. Running tasks continue.

    Workers notice within a second or two.
    """

    async def work(client: Client) -> Controls:
        some = {"queues": together(queues), "types": together(types)}
        async with audited(client, "pause", names_in_words(**some)):
            return await client.controls.pause(**some)

    answer(call, call.ask(work))
