"""`qo token` and `qo session`: manage API tokens and dashboard logins."""

from typing import Any

import click
from rich.text import Text

from qo.audit import cli_user
from qo.cli.audit import audited, names_in_words
from qo.cli.context import DURATION, CommandGroup, Invocation, common, examples, option
from qo.cli.output import age, confirm
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.errors import InvalidSetting, NameNotFound
from qo.model import plural
from qo.web.callers import Scope
from qo.web.http.tokens import (
    Created,
    Token,
    create_token,
    forget_tokens,
    read_token_uses,
    read_tokens,
    revoke_token,
)
from qo.web.oidc.sessions import UserSession, end_sessions, read_sessions


class Scopes(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Scopes separated by commas."""

    name = "scopes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Scope]:
        if isinstance(value, frozenset):
            return value
        try:
            scopes = frozenset(Scope(part.strip()) for part in str(value).split(",") if part.strip())
        except ValueError:
            scopes = frozenset()
        if not scopes:
            self.fail(f"{value!r:.80} is not a list of scopes; choose from {', '.join(Scope)}.", param, ctx)
        return scopes


@click.group(
    "token",
    cls=CommandGroup,
    epilog=examples(
        "qo token create --name ci --scopes submit,read --expires 30d",
        "qo token create --name mailer --scopes work --queue emails",
        "qo token list",
        "qo token revoke ci",
    ),
)
@common
def token_command(call: Invocation) -> None:
    """Manage API tokens for `qo serve`.

    Until the first token is created, the server accepts requests from this machine only, without a token.

    Scopes: read (read tasks and statistics), submit (submit tasks), work (the worker protocol), operate (read, cancel,
    replay, archive, pause, limit, drain), admin (all of these, and delete), engine (the whole store, for
    `qo worker --url http://...`; no other scope includes it).
    """
    click.get_current_context().find_root().obj = call  # options given before `create` apply to it


@token_command.command(
    "create",
    epilog=examples(
        "qo token create --name ci --scopes submit,read --expires 30d",
        "qo token create --name mailer --scopes work --queue emails --type send_mail",
    ),
)
@common
@option("--name", required=True, help="Name of the token; must be unique.")
@option("--scopes", type=Scopes(), required=True, help=f"Scopes, separated by commas: {', '.join(Scope)}.")
@option("--queue", "queues", multiple=True, help="A queue the token is valid for; repeat for more.  [default: all]")
@option("--type", "types", multiple=True, help="A task type the token is valid for; repeat for more.  [default: all]")
@option("--expires", type=DURATION, help="How long the token is valid.  [default: until revoked]")
def create(
    call: Invocation, name: str, scopes: frozenset[Scope], expires: float | None, **limits: tuple[str, ...]
) -> None:
    """Create a token and print it once. Only its hash is stored."""

    async def work(client: Client) -> Created:
        async with audited(client, "token.create", _rights_in_words(name, scopes, **limits)):
            return await create_token(
                client.engine, name, scopes, now=system_clock(), lifetime=expires, created_by=cli_user(), **limits
            )

    token, secret = call.run(work, create=True)
    if call.json:
        call.print_json(token_view(token, None) | {"token": secret})
        return
    click.echo(secret)
    click.echo(
        f"Store this token now; it is not shown again. Send it as: Authorization: Bearer {secret[:6]}...", err=True
    )


def _rights_in_words(name: str, scopes: frozenset[Scope], queues: tuple[str, ...], types: tuple[str, ...]) -> str:
    limits = names_in_words(queue=queues, type=types)
    return f"{name} ({', '.join(sorted(scopes))}{f'; {limits}' if limits else ''})"


@token_command.command("list", epilog=examples("qo token list"))
@common
def list_tokens(call: Invocation) -> None:
    """List tokens, without their secrets."""

    async def work(client: Client) -> tuple[tuple[Token, ...], bool, dict[str, float]]:
        tokens = await read_tokens(client.engine)
        return tokens.tokens, tokens.existed, (await read_token_uses(client.engine)).used_at

    (tokens, existed, used_at), now = call.run(work), system_clock()
    if call.json:
        call.print_json([token_view(token, used_at.get(token.id)) for token in tokens])
        return
    if not tokens:
        state = (
            "no tokens, so servers reject every request; create one with" if existed else "no tokens; create one with"
        )
        call.console.print(Text(f"{state}: qo token create --name NAME --scopes SCOPES", style="dim"))
        return
    rows = table("name", "id", "scopes", "queues", "types", "created", "last used", "expires")
    for token in tokens:
        rows.add_row(
            data(token.name),
            Text(token.id),
            Text(",".join(sorted(token.scopes))),
            _names_text(token.queues),
            _names_text(token.types),
            data(f"{age(now - token.created_at)} ago" + (f" by {token.created_by}" if token.created_by else "")),
            Text(f"{age(now - used_at[token.id])} ago" if token.id in used_at else "never", style="dim"),
            _expiry(token, now),
        )
    call.console.print(rows)


@token_command.command("revoke", epilog=examples("qo token revoke ci"))
@common
@click.argument("name_or_id", metavar="NAME|ID")
def revoke(call: Invocation, name_or_id: str) -> None:
    """Revoke a token. Servers reject it within a second.

    When no token is left, servers reject every request until a new token is created.
    """

    async def work(client: Client) -> Token:
        async with audited(client, "token.revoke", name_or_id) as action:
            revoked = await revoke_token(client.engine, name_or_id)
            action.target = f"{revoked.name} ({revoked.id})"
            return revoked

    token = call.run(work)
    if call.json:
        call.print_json(token_view(token, None))
    else:
        call.console.print(data(f"revoked {token.name}"))


@token_command.command("reset", epilog=examples("qo token reset --yes"))
@common
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(call: Invocation, yes: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Delete all tokens, as if none had ever been created.

    A server that starts afterwards accepts requests from this machine without a token. A server that is already
    running rejects every request.
    """
    if not yes:
        confirm("Delete all tokens and accept requests from this machine without a token?", abort=True)

    async def work(client: Client) -> int:
        async with audited(client, "token.reset"):
            return await forget_tokens(client.engine)

    forgotten = call.run(work)
    if call.json:
        call.print_json({"forgotten": forgotten})
    else:
        call.console.print(data(f"deleted {plural(forgotten, 'token')}; restart running servers"))


def token_view(token: Token, used_at: float | None) -> dict[str, Any]:
    """A token as JSON, without its hash."""
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "queues": sorted(token.queues),
        "types": sorted(token.types),
        "created_at": iso(token.created_at),
        "created_by": token.created_by or None,
        "last_used_at": iso(used_at),
        "expires_at": iso(token.expires_at),
    }


def _names_text(names: frozenset[str]) -> Text:
    return data(",".join(sorted(names))) if names else Text("all", style="dim")


def _expiry(token: Token, now: float) -> Text:
    if token.expires_at is None:
        return Text("never", style="dim")
    if token.expires_at <= now:
        return Text("expired", style="red")
    return Text(f"in {age(token.expires_at - now)}")


@click.group(
    "session",
    cls=CommandGroup,
    epilog=examples("qo session list", "qo session end ann@example.com", "qo session end --group contractors"),
)
@common
def session_command(call: Invocation) -> None:
    """List dashboard logins and end them.

    Ending a session logs its user out. To prevent a new login, first remove the user from the group at the identity
    provider, or the group from --oidc-role.
    """
    click.get_current_context().find_root().obj = call  # options given before `list` apply to it


@session_command.command("list", epilog=examples("qo session list"))
@common
def list_sessions(call: Invocation) -> None:
    """List sessions, oldest first."""
    now = system_clock()

    async def work(client: Client) -> list[UserSession]:
        return await read_sessions(client.engine, now)

    sessions = call.run(work)
    if call.json:
        call.print_json([session_view(session) for session in sessions])
        return
    if not sessions:
        call.console.print(Text("no sessions", style="dim"))
        return
    rows = table("user", "session", "groups", "logged in", "expires")
    for session in sessions:
        rows.add_row(
            data(session.name),
            data(session.id),
            data(", ".join(session.groups)),
            Text(f"{age(now - session.created_at)} ago"),
            Text(f"in {age(session.expires_at - now)}"),
        )
    call.console.print(rows)


@session_command.command(
    "end",
    epilog=examples("qo session end ann@example.com", "qo session end --group contractors", "qo session end --all"),
)
@common
@click.argument("names", nargs=-1, metavar="[USER|SESSION]...")
@option("--group", "groups", multiple=True, metavar="GROUP", help="Sessions of members of this group; repeat for more.")
@option("--all", "everyone", is_flag=True, help="All sessions.")
def end(call: Invocation, names: tuple[str, ...], groups: tuple[str, ...], *, everyone: bool) -> None:
    """End single sessions, or all sessions of users or groups. Servers apply it within a second."""
    if not names and not groups and not everyone:
        raise InvalidSetting("pass users or sessions from `qo session list`, or use --group or --all")

    def is_selected(session: UserSession) -> bool:
        identifiers = {session.name, session.subject, session.id}
        return everyone or not identifiers.isdisjoint(names) or not set(groups).isdisjoint(session.groups)

    async def work(client: Client) -> list[UserSession]:
        async with audited(client, "session.end") as action:
            ended = await end_sessions(client.engine, is_selected)
            action.target = ", ".join(dict.fromkeys(session.name for session in ended))
            if not ended:
                raise NameNotFound("no session matches; see `qo session list`")
            return ended

    ended = call.run(work)
    if call.json:
        call.print_json([session_view(session) for session in ended])
    else:
        users = ", ".join(dict.fromkeys(session.name for session in ended))
        call.console.print(data(f"ended {plural(len(ended), 'session')} of {users}"))


def session_view(session: UserSession) -> dict[str, Any]:
    """A session as JSON, without its hash."""
    return {
        "id": session.id,
        "name": session.name,
        "subject": session.subject,
        "groups": list(session.groups),
        "created_at": iso(session.created_at),
        "expires_at": iso(session.expires_at),
    }
