"""`qo schedules`: list, show, add, pause, resume, run and remove schedules."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec
from rich.table import Table
from rich.text import Text

from qo.cli.audit import audited, names_in_words
from qo.cli.context import DURATION, PRIORITIES, CommandGroup, Invocation, common, examples, option
from qo.cli.output import age, duration
from qo.cli.rich_output import data, status_text, table
from qo.cli.task_lines import NO_ARGUMENTS, encode_payload, read_input
from qo.client import Client, describe
from qo.clock import system_clock
from qo.model import MAX_RETRIES, TIMEOUT
from qo.safe_text import clean
from qo.schedules.document import document_of
from qo.schedules.schedule import CATCH_UPS, OVERLAPS, Schedule
from qo.schedules.view import FireView, ScheduleInfo

STYLES = {"active": "green", "paused": "yellow", "inactive": "dim", "ended": "dim"}
_OUTCOME_STYLES = {"fired": "green", "skipped": "yellow", "missed": "red"}
_TIMING = ("cron", "every", "timezone", "start_at", "end_at", "jitter", "catch_up", "catch_up_window", "overlap")


@click.group(
    "schedules",
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples(
        "qo schedules",
        "qo schedules show nightly-report",
        'qo schedules add sync-acme --every 5m --type sync --input \'{"customer": "acme"}\'',
        'qo schedules add report --cron "0 3 * * *" --timezone Europe/Berlin --type report',
        "qo schedules pause sync-acme",
    ),
)
@common
def command(call: Invocation) -> None:
    """List schedules, or show and change one."""
    context = click.get_current_context()
    context.find_root().obj = call  # options given before a subcommand apply to it
    if context.invoked_subcommand is None:
        context.invoke(list_)


@command.command("list", epilog=examples("qo schedules list --json"))
@common
def list_(call: Invocation) -> None:
    """List all schedules with their next and last fire times."""

    async def work(client: Client) -> list[ScheduleInfo]:
        return await client.schedules.list()

    schedules = call.run(work)
    if call.json:
        call.print_json([_document(info) for info in schedules])
    elif schedules:
        call.console.print(schedule_table(schedules, system_clock()))
    else:
        call.console.print(Text("no schedules; add one with: qo schedules add", style="dim"))


@command.command("show", epilog=examples("qo schedules show nightly-report", "qo schedules show sync-acme --json"))
@common
@click.argument("name")
def show(call: Invocation, name: str) -> None:
    """Show one schedule: its next five fire times and its last results."""
    _print(call, call.run(lambda client: client.schedules.get(name)))


@command.command(
    "add",
    epilog=examples(
        'qo schedules add sync-acme --every 5m --type sync --input \'{"customer": "acme"}\'',
        'qo schedules add report --cron "0 3 * * *" --timezone Europe/Berlin --type report --overlap skip',
    ),
)
@common
@click.argument("name")
@option("--cron", metavar="TEXT", help="Five fields: minute, hour, day of the month, month, day of the week.")
@option("--every", type=DURATION, help="An interval instead of --cron: 90s, 5m, 2h, 7d.")
@option("--timezone", metavar="ZONE", default="UTC", help="Time zone of --cron.")
@option("--type", "type_", metavar="NAME", required=True, help="Type of the tasks, which selects their handler.")
@option(
    "--input", "input_", metavar="JSON", help=f"The payload as JSON, @file, or - for stdin.  [default: {NO_ARGUMENTS}]"
)
@option("--queue", metavar="NAME", default="default", help="Queue of the tasks.")
@option("--priority", metavar="LEVEL", default="medium", help=f"0 to 9, lower first; {PRIORITIES}.")
@option("--timeout", type=DURATION, default=TIMEOUT, help="Maximum duration of one attempt.")
@option("--max-retries", type=int, metavar="N", default=MAX_RETRIES, help="Retries before a task fails permanently.")
@option("--fair-by", metavar="NAME", help="Argument by whose value workers take turns.")
@option("--jitter", type=DURATION, help="Delay each task by a random time of up to this much.")
@option("--start-at", metavar="TIME", help="No fire time before this ISO 8601 time; UTC unless it has an offset.")
@option("--end-at", metavar="TIME", help="No fire time after this ISO 8601 time.")
@option("--catch-up", type=click.Choice(CATCH_UPS), default="last", help="Which missed fire times are caught up.")
@option("--catch-up-window", type=DURATION, help="Catch up only fire times of this last period.  [default for all: 1d]")
@option(
    "--overlap", type=click.Choice(OVERLAPS), default="allow",
    help="While an earlier task of the schedule has not finished: start another, skip it, or cancel the earlier one.",
)  # fmt: skip
def add(call: Invocation, name: str, type_: str, input_: str | None, **given: Any) -> None:
    """Add a schedule, or change one that was added before."""
    payload = encode_payload(read_input(NO_ARGUMENTS if input_ is None else input_))
    timing = {option: given.pop(option) for option in _TIMING}
    priority = given.pop("priority")
    level: Any = int(priority) if str(priority).isdecimal() else priority
    new = describe(call.settings, type_, payload, priority=level, **given)

    async def work(client: Client) -> ScheduleInfo:
        async with audited(client, "schedule.add", names_in_words(schedule=(name,))):
            return await client.schedules.add(name, task=new, **timing)

    _print(call, call.run(work, create=True))


@command.command("pause", epilog=examples("qo schedules pause sync-acme"))
@common
@click.argument("name")
def pause(call: Invocation, name: str) -> None:
    """Submit no tasks of a schedule until it is resumed."""
    _change(call, "schedule.pause", name, lambda client: client.schedules.pause(name))


@command.command("resume", epilog=examples("qo schedules resume sync-acme"))
@common
@click.argument("name")
def resume(call: Invocation, name: str) -> None:
    """Let a paused schedule submit tasks again. Fire times during the pause are not caught up."""
    _change(call, "schedule.resume", name, lambda client: client.schedules.resume(name))


def _change(call: Invocation, action: str, name: str, change: Callable[[Client], Awaitable[ScheduleInfo]]) -> None:
    async def work(client: Client) -> ScheduleInfo:
        async with audited(client, action, names_in_words(schedule=(name,))):
            return await change(client)

    _print(call, call.run(work))


@command.command("run", epilog=examples("qo schedules run nightly-report"))
@common
@click.argument("name")
def run(call: Invocation, name: str) -> None:
    """Submit a task of a schedule now, whether or not the schedule is paused. Its fire times do not change."""

    async def work(client: Client) -> str:
        async with audited(client, "schedule.run", names_in_words(schedule=(name,))):
            return await client.schedules.run(name)

    task_id = call.run(work)
    if call.json:
        call.print_json({"name": name, "task_id": task_id})
    else:
        call.console.print(Text.assemble("submitted task ", (task_id, "cyan")))


@command.command("remove", epilog=examples("qo schedules remove sync-acme"))
@common
@click.argument("name")
def remove(call: Invocation, name: str) -> None:
    """Delete a schedule. Its tasks stay. To remove a schedule that is declared in code, remove the declaration."""

    async def work(client: Client) -> None:
        async with audited(client, "schedule.remove", names_in_words(schedule=(name,))):
            await client.schedules.remove(name)

    call.run(work)
    if call.json:
        call.print_json({"name": name, "removed": True})
    else:
        call.console.print(Text(clean(f"removed {name}"), style="yellow"))


# --- output


def _document(info: ScheduleInfo) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(document_of(info))
    return document


def _print(call: Invocation, info: ScheduleInfo) -> None:
    if call.json:
        call.print_json(_document(info))
        return
    now = system_clock()
    call.console.print(facts_table(info))
    if info.next_fires:
        call.console.print(_next_table(info, now))
    if info.recent:
        call.console.print(_recent_table(info))


def schedule_table(schedules: list[ScheduleInfo], now: float) -> Table:
    rows = table("schedule", "status", "when", "type", "next", "last", "result", right=("next", "last"))
    for info in schedules:
        last = next(iter(info.recent), None)
        rows.add_row(
            data(info.name),
            Text(info.status, style=STYLES[info.status]),
            data(_timing(info)),
            data(info.type),
            Text(f"in {age(info.next_fires[0] - now)}" if info.next_fires else "", style="cyan"),
            Text(f"{age(now - last.at)} ago" if last else "", style="dim"),
            _result(last) if last else Text(""),
        )
    return rows


def _timing(info: ScheduleInfo) -> str:
    return f"every {duration(info.schedule.every)}" if info.schedule.every else info.timing


def _result(fire: FireView) -> Text:
    """The status of its task, or why there is none."""
    if fire.task_status is not None:
        return status_text(fire.task_status)
    number = f" {fire.count}" if fire.count > 1 else ""
    return Text(f"{fire.outcome}{number}", style=_OUTCOME_STYLES[fire.outcome])


def facts_table(info: ScheduleInfo) -> Table:
    schedule = info.schedule
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right")
    rows.add_column(overflow="fold")
    window = f" within {age(schedule.catch_up_window)}" if schedule.catch_up_window else ""
    for label, value in (
        ("schedule", data(info.name, "bold")),
        ("status", Text(_status(info), style=STYLES[info.status])),
        ("when", data(_timing(info))),
        ("task", data(f"{info.type} in queue {info.queue}")),
        ("defined", Text("in code" if info.source == "code" else "at run time")),
        ("start", data(_moment(schedule, schedule.start_at) if schedule.start_at else "none")),
        ("end", data(_moment(schedule, schedule.end_at) if schedule.end_at else "none")),
        ("jitter", Text(f"up to {age(schedule.jitter)}" if schedule.jitter else "none")),
        ("catch-up", Text(f"{schedule.catch_up}{window}")),
        ("overlap", Text(schedule.overlap)),
    ):
        rows.add_row(label, value)
    return rows


def _status(info: ScheduleInfo) -> str:
    return f"{info.status}: {clean(info.inactive_because)}" if info.inactive_because else info.status


def _next_table(info: ScheduleInfo, now: float) -> Table:
    rows = table("next", "in", right=("in",))
    for at in info.next_fires:
        rows.add_row(Text(_moment(info.schedule, at), style="cyan"), Text(age(at - now), style="dim"))
    return rows


def _recent_table(info: ScheduleInfo) -> Table:
    rows = table("fired", "result", "task", "")
    for fire in info.recent:
        why = "manual run" if fire.by_hand else fire.reason or ""
        rows.add_row(_moment(info.schedule, fire.at), _result(fire), data(fire.task_id or ""), data(why, "dim"))
    return rows


def _moment(schedule: Schedule, at: float) -> str:
    """A time in the zone of the schedule."""
    zone = ZoneInfo(schedule.timezone) if schedule.cron else UTC
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S %z")
