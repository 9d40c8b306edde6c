"""`qo migrate`: the tables of a store, brought to what this qo knows."""

import asyncio

import click

from qo.cli.audited import audited
from qo.cli.context import Call, common, examples
from qo.cli.exits import Exit
from qo.cli.output import clean
from qo.engines import hide_password, open_engine, schema_of
from qo.engines.schemas import Schema
from qo.queue import Queue


@click.command("migrate", epilog=examples("qo migrate", "qo migrate postgresql://db.example/app --check"))
@common
@click.argument("store", required=False, metavar="[URL]")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if there is something to do.")
def command(call: Call, store: str | None, *, check: bool) -> int:
    """Create or update a store's tables. Any queue does this when it is opened; here it is a step of your own, for a
    user with more rights, before new workers start. Any number may run at once.
    """
    url = store or call.url
    before = asyncio.run(schema_of(url))
    after = before if check or before is None else asyncio.run(_migrate(url, before))
    behind = after is not None and not after.is_current
    if call.json:
        call.answer(_view(url, before, after))
    else:
        call.out.print(clean(f"{hide_password(url)}: {_said(before, after)}"), markup=False)
    return Exit.ERROR if behind else Exit.CLEAN


async def _migrate(url: str, before: Schema) -> Schema | None:
    async with Queue(open_engine(url)) as queue:
        after = await schema_of(url)
        if after is not None and after.found != before.found:
            async with audited(queue, "migrate", f"schema {before.found or 'none'} to {after.found}"):
                pass
    return after


def _view(url: str, before: Schema | None, after: Schema | None) -> dict[str, object]:
    shown: dict[str, object] = {"url": hide_password(url), "current": after is None or after.is_current}
    if before is not None and after is not None:
        shown |= {"found": before.found, "version": after.found, "known": after.known}
    return shown


def _said(before: Schema | None, after: Schema | None) -> str:
    if before is None or after is None:
        return "this store has no tables, so there is nothing to migrate"
    if not after.is_current:
        return f"its schema is {after.found or 'not there yet'}, this qo needs {after.known}; run qo migrate"
    if before.found != after.found:
        return f"its schema went from {before.found} to {after.found}"
    return f"its schema is {after.found}, the present one"
