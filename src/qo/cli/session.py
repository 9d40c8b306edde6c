"""`qo session`: list and end dashboard logins."""

from typing import Any

import click
from rich.text import Text

from qo.cli.audit import audited
from qo.cli.context import Invocation, common, examples, option
from qo.cli.output import age
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.errors import InvalidSetting
from qo.model import plural

try:
    from qo.web.oidc.sessions import UserSession, end_sessions, read_sessions
except ImportError as missing:
    raise InvalidSetting("sessions need the server's packages: pip install 'qo-queue[web]'") from missing


@click.group(
    "session",
    epilog=examples("qo session list", "qo session end ann@example.com", "qo session end --group contractors"),
)
@common
def command(call: Invocation) -> None:
    """List dashboard logins and end them.

    Ending a session logs its user out. To prevent a new login, first remove the user from the group at the identity
    provider, or the group from --oidc-role.
    """
    click.get_current_context().find_root().obj = call  # options given before `list` apply to it


@command.command("list", epilog=examples("qo session list"))
@common
def list_(call: Invocation) -> None:
    """List sessions, oldest first."""
    now = system_clock()

    async def work(client: Client) -> list[UserSession]:
        return await read_sessions(client.engine, now)

    sessions = call.run(work)
    if call.json:
        call.print_json([view(session) for session in sessions])
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


@command.command(
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
                raise InvalidSetting("no session matches; see `qo session list`")
            return ended

    ended = call.run(work)
    if call.json:
        call.print_json([view(session) for session in ended])
    else:
        users = ", ".join(dict.fromkeys(session.name for session in ended))
        call.console.print(data(f"ended {plural(len(ended), 'session')} of {users}"))


def view(session: UserSession) -> dict[str, Any]:
    """A session as JSON, without its hash."""
    return {
        "id": session.id,
        "name": session.name,
        "subject": session.subject,
        "groups": list(session.groups),
        "created_at": iso(session.created_at),
        "expires_at": iso(session.expires_at),
    }
