"""`qo migrate`: the tables of a store, brought to what this qo knows."""

import asyncio

import click

from qo.cli.audited import audited
from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.cli.output import clean
from qo.client import Client
from qo.clock import iso
from qo.engines import open_engine, schema_of
from qo.engines.schemas import Schema
from qo.errors import InvalidSetting
from qo.old_tokens import OldToken, discard_old_tokens, find_old_tokens, move_old_tokens
from qo.url_secrets import hide_password


@click.command(
    "migrate",
    epilog=examples("qo migrate", "qo migrate postgresql://db.example/app --check", "qo migrate --tokens move"),
)
@common
@click.argument("store", required=False, metavar="[URL]")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if there is something to do.")
@click.option(
    "--tokens",
    type=click.Choice(("move", "discard")),
    help="What becomes of tokens in the place of earlier versions: trust them, or forget them.",
)
def command(call: Invocation, store: str | None, tokens: str | None, *, check: bool) -> int:
    """Create or update a store's tables. Any queue does this when it is opened; here it is a step of your own, for a
    user with more rights, before new workers start. Any number may run at once.

    Tokens of earlier versions lie where workers and producers of a bucket could write them. They are not used until an
    administrator has looked at the list and moved them.
    """
    url = store or call.url
    if check and tokens is not None:
        raise InvalidSetting("--check changes nothing, so leave out --tokens")
    before = asyncio.run(schema_of(url))
    after = before if check or before is None else asyncio.run(_migrate(url, before))
    behind = after is not None and not after.is_current
    old = None if behind else asyncio.run(_settle_tokens(url, tokens))
    if call.json:
        call.answer(_view(url, before, after) | _tokens_view(old, tokens))
    else:
        call.out.print(clean(f"{hide_password(url)}: {_said(before, after)}"), markup=False)
        for line in _tokens_said(old, tokens):
            call.out.print(clean(line), markup=False)
    return Exit.ERROR if behind or (old is not None and tokens is None) else Exit.CLEAN


async def _migrate(url: str, before: Schema) -> Schema | None:
    async with Client(open_engine(url)) as client:
        after = await schema_of(url)
        if after is not None and after.found != before.found:
            async with audited(client, "migrate", f"schema {before.found or 'none'} to {after.found}"):
                pass
    return after


async def _settle_tokens(url: str, what: str | None) -> list[OldToken] | None:
    """None: there are none, or they are behind a server, whose own administrator moves them."""
    async with Client(open_engine(url)) as client:
        if client.engine.is_remote:
            return None
        if what is None:
            return await find_old_tokens(client.engine)
        async with audited(client, "migrate", f"old tokens: {what}") as doing:
            settled = await (move_old_tokens if what == "move" else discard_old_tokens)(client.engine)
            doing.number = len(settled)
    return settled


def _tokens_view(old: list[OldToken] | None, what: str | None) -> dict[str, object]:
    if old is None:
        return {}
    done = {"move": "moved", "discard": "discarded"}.get(what or "", "found")
    return {
        "old_tokens": done,
        "tokens": [{"name": token.name, "scopes": token.scopes, "created_at": iso(token.created_at)} for token in old],
    }


def _tokens_said(old: list[OldToken] | None, what: str | None) -> list[str]:
    if old is None:
        return []
    listed = [f"  {token.name}  {','.join(token.scopes)}  created {iso(token.created_at)}" for token in old]
    if what is not None:
        word = "moved" if what == "move" else "discarded"
        return [f"{word} {len(old)} tokens of the old place" + (":" if old else ""), *listed]
    if not listed:
        listed = ["  (nothing in it can be read)"]
    return [
        "tokens in the place of earlier versions, which every role of a bucket could write; they are not used:",
        *listed,
        "if you know all of them run: qo migrate --tokens move; if not: qo migrate --tokens discard",
    ]


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
