"""`qo session`: people who logged in through an identity provider."""

from typing import Any

import click
from rich.text import Text

from qo.cli.audited import audited
from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import age, plural
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.errors import InvalidSetting

try:
    from qo.web.oidc.sessions import UserSession, end_sessions, read_sessions
except ImportError as missing:
    raise InvalidSetting("sessions need the packages of the server: pip install 'qo-queue[web]'") from missing


@click.group(
    "session",
    epilog=examples("qo session list", "qo session end ann@example.com", "qo session end --group contractors"),
)
@common
def command(call: Invocation) -> None:
    """People who logged in to the dashboard of `qo serve`: list their sessions, end them.

    Ending a session logs the person out everywhere. Who has a role in a group can log in again: remove the person from
    the group at the provider, or the group from --oidc-role, first.
    """
    click.get_current_context().find_root().obj = call  # what stands before `list` holds for it


@command.command("list", epilog=examples("qo session list"))
@common
def list_(call: Invocation) -> None:
    """List who is logged in, the oldest session first."""
    now = system_clock()

    async def work(client: Client) -> list[UserSession]:
        return await read_sessions(client.engine, now)

    sessions = call.ask(work)
    if call.json:
        call.answer([view(session) for session in sessions])
        return
    if not sessions:
        call.out.print(Text("nobody is logged in", style="dim"))
        return
    rows = table("name", "session", "groups", "logged in", "ends")
    for session in sessions:
        rows.add_row(
            data(session.name),
            data(session.id),
            data(", ".join(session.groups)),
            Text(f"{age(now - session.created_at)} ago"),
            Text(f"in {age(session.expires_at - now)}"),
        )
    call.out.print(rows)


@command.command(
    "end",
    epilog=examples("qo session end ann@example.com", "qo session end --group contractors", "qo session end --all"),
)
@common
@click.argument("which", nargs=-1, metavar="[NAME|SESSION]...")
@option("--group", "groups", multiple=True, metavar="GROUP", help="Sessions of members of this group; repeat.")
@option("--all", "everyone", is_flag=True, help="Every session.")
def end(call: Invocation, which: tuple[str, ...], groups: tuple[str, ...], *, everyone: bool) -> None:
    """End sessions: all of the people named, or single ones. Servers heed it within a second."""
    if not which and not groups and not everyone:
        raise InvalidSetting("name people or sessions, as `qo session list` shows them, or use --group or --all")

    def is_chosen(session: UserSession) -> bool:
        named = {session.name, session.subject, session.id}
        return everyone or not named.isdisjoint(which) or not set(groups).isdisjoint(session.groups)

    async def work(client: Client) -> list[UserSession]:
        async with audited(client, "session.end") as action:
            ended = await end_sessions(client.engine, is_chosen)
            action.target = ", ".join(dict.fromkeys(session.name for session in ended))
            if not ended:
                raise InvalidSetting("nobody who is logged in matches; see `qo session list`")
            return ended

    ended = call.ask(work)
    if call.json:
        call.answer([view(session) for session in ended])
    else:
        names = ", ".join(dict.fromkeys(session.name for session in ended))
        call.out.print(data(f"ended {plural(len(ended), 'session')} of {names}"))


def view(session: UserSession) -> dict[str, Any]:
    """A session as JSON shows it: without its hash."""
    return {
        "id": session.id,
        "name": session.name,
        "subject": session.subject,
        "groups": list(session.groups),
        "created_at": iso(session.created_at),
        "expires_at": iso(session.expires_at),
    }
