"""`qo limit`: how many tasks a worker may start a second, and how many types a queue may have."""

import click

from qo.cli.audited import audited
from qo.cli.context import Invocation, common, examples, option
from qo.cli.controls import answer
from qo.client import Client
from qo.notes import Controls

_EXAMPLES = (
    "qo limit 100",
    "qo limit 5 --type send_email",
    "qo limit 0        # no limit",
    "qo limit --max-types 2000",
)


@click.command("limit", epilog=examples(*_EXAMPLES))
@common
@click.argument("rate", type=float, required=False)
@option("--type", "type_", metavar="NAME", help="Only tasks of this type; overrides the limit in the code.")
@option(
    "--max-types",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="How many types of unfinished tasks a queue may have, 0 for no limit; 1,000 unless set.",
)
def command(call: Invocation, rate: float | None, type_: str | None, max_types: int | None) -> None:
    """Let each worker start at most RATE tasks a second, in all or of one type; 0 lifts the limit."""
    if rate is None and (max_types is None or type_ is not None):
        raise click.UsageError("name a RATE, or --max-types")

    async def work(client: Client) -> Controls:
        control = Controls()
        if max_types is not None:
            async with audited(client, "limit", f"{max_types} types"):
                control = await client.controls.limit_types(max_types)
        if rate is not None:
            async with audited(client, "limit", f"{rate:g} a second" + (f", type {type_}" if type_ else "")):
                control = await client.controls.limit_rate(rate, type=type_)
        return control

    answer(call, call.ask(work))
