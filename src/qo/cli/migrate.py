"""`qo migrate`: create or update a store's tables."""

import asyncio

import click

from qo.cli.audit import audited
from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.client import Client
from qo.clock import iso
from qo.engines import open_engine, schema_of
from qo.errors import InvalidSetting
from qo.formats import Schema
from qo.model import plural
from qo.old_tokens import OldToken, discard_old_tokens, find_old_tokens, move_old_tokens
from qo.terminal_text import clean
from qo.url_secrets import hide_password


@click.command(
    "migrate",
    epilog=examples("qo migrate", "qo migrate postgresql://db.example/app --check", "qo migrate --tokens move"),
)
@common
@click.argument("store", required=False, metavar="[URL]")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a migration is needed.")
@click.option(
    "--tokens",
    type=click.Choice(("move", "discard")),
    help="Move the tokens of earlier versions to their new place, or discard them.",
)
def command(call: Invocation, store: str | None, tokens: str | None, *, check: bool) -> int:
    """Create or update a store's tables. Opening a store does this too. Run it as a separate step if only a privileged
    user may change tables. Concurrent runs are safe.

    Earlier versions kept tokens where a bucket's workers and producers could write them. These tokens are not accepted
    until an administrator has checked and moved them.
    """
    url = store or call.url
    if check and tokens is not None:
        raise InvalidSetting("--check and --tokens cannot be combined: --check changes nothing")
    before = asyncio.run(schema_of(url))
    after = before if check or before is None else asyncio.run(_migrate(url, before))
    is_outdated = after is not None and not after.is_current
    old = None if is_outdated else asyncio.run(_handle_old_tokens(url, tokens))
    if call.json:
        call.print_json(_view(url, before, after) | _token_view(old, tokens))
    else:
        call.console.print(clean(f"{hide_password(url)}: {_summary(before, after)}"), markup=False)
        for line in _token_lines(old, tokens):
            call.console.print(clean(line), markup=False)
    return Exit.ERROR if is_outdated or (old is not None and tokens is None) else Exit.CLEAN


async def _migrate(url: str, before: Schema) -> Schema | None:
    async with Client(open_engine(url)) as client:
        after = await schema_of(url)
        if after is not None and after.found != before.found:
            async with audited(client, "migrate", f"schema {before.found or 'none'} to {after.found}"):
                pass
    return after


async def _handle_old_tokens(url: str, choice: str | None) -> list[OldToken] | None:
    """The tokens of earlier versions; None if there are none, or if only the server's administrator can move them."""
    async with Client(open_engine(url)) as client:
        if client.engine.is_remote:
            return None
        if choice is None:
            return await find_old_tokens(client.engine)
        async with audited(client, "migrate", f"old tokens: {choice}") as progress:
            old = await (move_old_tokens if choice == "move" else discard_old_tokens)(client.engine)
            progress.number = len(old)
    return old


def _token_view(old: list[OldToken] | None, choice: str | None) -> dict[str, object]:
    if old is None:
        return {}
    done = {"move": "moved", "discard": "discarded"}.get(choice or "", "found")
    return {
        "old_tokens": done,
        "tokens": [{"name": token.name, "scopes": token.scopes, "created_at": iso(token.created_at)} for token in old],
    }


def _token_lines(old: list[OldToken] | None, choice: str | None) -> list[str]:
    if old is None:
        return []
    listed = [f"  {token.name}  {','.join(token.scopes)}  created {iso(token.created_at)}" for token in old]
    if choice is not None:
        word = "moved" if choice == "move" else "discarded"
        return [f"{word} {plural(len(old), 'token')} of an earlier version" + (":" if old else ""), *listed]
    if not listed:
        listed = ["  (none of them can be read)"]
    return [
        "this store has tokens of an earlier version, which every role of a bucket could write; they are not accepted:",
        *listed,
        "if you know all of them, run: qo migrate --tokens move; otherwise: qo migrate --tokens discard",
    ]


def _view(url: str, before: Schema | None, after: Schema | None) -> dict[str, object]:
    shown: dict[str, object] = {"url": hide_password(url), "current": after is None or after.is_current}
    if before is not None and after is not None:
        shown |= {"found": before.found, "version": after.found, "known": after.known}
    return shown


def _summary(before: Schema | None, after: Schema | None) -> str:
    if before is None or after is None:
        return "nothing to migrate: this kind of store has no tables, and opening it upgrades its format"
    if not after.is_current:
        return f"schema {after.found or 'missing'}, but this version of qo needs schema {after.known}; run qo migrate"
    if before.found != after.found:
        return f"migrated from schema {before.found} to {after.found}"
    return f"schema {after.found} is up to date"
