"""`qo token`: who may call the server, and what they may do."""

from typing import Any

import click
from rich.text import Text

from qo.cli.context import Call, common, examples, option
from qo.cli.output import age, data, table
from qo.cli.params import DURATION
from qo.clock import iso, system_clock
from qo.errors import InvalidSetting
from qo.queue import Queue

try:
    from qo.web.tokens import Created, Scope, Token, create_token, read_tokens, revoke_token
except ImportError as missing:
    raise InvalidSetting("tokens need the packages of the server: pip install 'qo-queue[web]'") from missing


class Scopes(click.ParamType):  # type: ignore[type-arg]  # only newer clicks take one
    """Scopes with commas between them."""

    name = "scopes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Scope]:
        if isinstance(value, frozenset):
            return value
        try:
            scopes = frozenset(Scope(part.strip()) for part in str(value).split(",") if part.strip())
        except ValueError:
            scopes = frozenset()
        if not scopes:
            self.fail(f"{value!r:.80} is not a list of {', '.join(Scope)}.", param, ctx)
        return scopes


@click.group(
    "token",
    epilog=examples(
        "qo token create --name ci --scopes submit,read --expires 30d", "qo token list", "qo token revoke ci"
    ),
)
@common
def command(call: Call) -> None:
    """Tokens for `qo serve`: create, list, revoke.

    As long as there is none, the server answers this machine only and asks for none. Scopes: read (look), submit (bring
    and cancel tasks), work (be a worker), admin (everything).
    """
    click.get_current_context().find_root().obj = call  # what stands before `create` holds for it


@command.command("create", epilog=examples("qo token create --name ci --scopes submit,read --expires 30d"))
@common
@option("--name", required=True, help="What it is for; one token a name.")
@option("--scopes", type=Scopes(), required=True, help=f"With commas: {', '.join(Scope)}.")
@option("--expires", type=DURATION, help="How long it is good for.  [default: until revoked]")
def create(call: Call, name: str, scopes: frozenset[Scope], expires: float | None) -> None:
    """Create a token and print it, once: only its hash is kept."""

    async def work(queue: Queue) -> Created:
        return await create_token(queue.engine, name, scopes, now=system_clock(), lifetime=expires)

    token, secret = call.ask(work, create=True)
    if call.json:
        call.answer(view(token) | {"token": secret})
        return
    click.echo(secret)
    click.echo(f"Keep it: it is not shown again. Send it as: Authorization: Bearer {secret[:6]}...", err=True)


@command.command("list", epilog=examples("qo token list"))
@common
def list_(call: Call) -> None:
    """List tokens, without the tokens themselves."""

    async def work(queue: Queue) -> tuple[Token, ...]:
        return (await read_tokens(queue.engine)).tokens

    tokens, now = call.ask(work), system_clock()
    if call.json:
        call.answer([view(token) for token in tokens])
        return
    if not tokens:
        call.out.print(Text("no tokens; create one with: qo token create --name NAME --scopes SCOPES", style="dim"))
        return
    rows = table("name", "number", "scopes", "created", "expires")
    for token in tokens:
        rows.add_row(
            data(token.name),
            Text(token.id),
            Text(",".join(sorted(token.scopes))),
            Text(f"{age(now - token.created_at)} ago", style="dim"),
            _expiry(token, now),
        )
    call.out.print(rows)


@command.command("revoke", epilog=examples("qo token revoke ci"))
@common
@click.argument("which", metavar="NAME|ID")
def revoke(call: Call, which: str) -> None:
    """Forget a token. Servers heed it within a second."""

    async def work(queue: Queue) -> Token:
        return await revoke_token(queue.engine, which)

    token = call.ask(work)
    if call.json:
        call.answer(view(token))
    else:
        call.out.print(data(f"revoked {token.name}"))


def view(token: Token) -> dict[str, Any]:
    """A token as JSON shows it: without its hash."""
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "created_at": iso(token.created_at),
        "expires_at": iso(token.expires_at),
    }


def _expiry(token: Token, now: float) -> Text:
    if token.expires_at is None:
        return Text("never", style="dim")
    if token.expires_at <= now:
        return Text("expired", style="red")
    return Text(f"in {age(token.expires_at - now)}")
