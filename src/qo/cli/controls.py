"""`qo pause`, `resume` and `limit`: change the controls that all workers read, and show them."""

from typing import Any, Literal, TypedDict, Unpack

import click
import msgspec
from rich.text import Text

from qo.cli.audit import audited, names_in_words
from qo.cli.context import DURATION, TYPES, Invocation, Names, common, examples, flatten, option
from qo.client import Client
from qo.fleet_limits.limit_status import MAX_GROUPS, GroupStatus, LimitStatus, describe_limit, limit_statuses
from qo.model import Limit, plural
from qo.notes import Controls
from qo.safe_text import clean

_MAX_GROUPS, _MAX_HOLDERS = 20, 5  # lines of each limit, and of each group
NameLists = tuple[tuple[str, ...], ...]
_QUEUES = option(
    "--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas."
)
_TYPES = option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")


class FleetOptions(TypedDict):
    """The options of `qo limit` for limits across all workers."""

    queue: str | None
    key: str | None
    concurrency: int | None
    starts: int | None
    per: float | None
    remove: bool


@click.command("pause", epilog=examples("qo pause", "qo pause --queue mail --type crawl"))
@common
@_QUEUES
@_TYPES
def pause(call: Invocation, queues: NameLists, types: NameLists) -> None:
    """Stop all workers from starting tasks, or only tasks of some queues or types. Running tasks continue.

    Workers notice within a second or two.
    """
    _pause_or_resume(call, "pause", queues=flatten(queues), types=flatten(types))


@click.command("resume", epilog=examples("qo resume", "qo resume --queue mail --type crawl"))
@common
@_QUEUES
@_TYPES
def resume(call: Invocation, queues: NameLists, types: NameLists) -> None:
    """Undo `qo pause`: for the named queues or types, or for everything.

    Workers notice within a second or two.
    """
    _pause_or_resume(call, "resume", queues=flatten(queues), types=flatten(types))


@click.command(
    "limit",
    epilog=examples(
        "qo limit 100",
        "qo limit 5 --type send_email",
        "qo limit 0        # no limit",
        "qo limit --max-types 2000",
        "qo limit --type send_email --concurrency 20    # across all workers",
        "qo limit --key customer_id=42 --starts 100 --per 60",
        "qo limit --type send_email --remove",
        "qo limit          # shows the limits, and which workers hold their slots",
    ),
)
@common
@click.argument("rate", type=float, required=False)
@option("--type", "type_", metavar="NAME", help="Only tasks of this type; overrides the limit in the code.")
@option(
    "--max-types",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="How many types with unfinished tasks a queue may have; 0 for no limit.  [default: 1000]",
)
@option("--queue", metavar="NAME", help="Limit the tasks of this queue, across all workers.")
@option("--key", metavar="NAME=VALUE", help="Limit the tasks with this value of an argument, across all workers.")
@option(
    "--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="Tasks that run at a time, across all workers."
)
@option(
    "--starts",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Tasks that start within --per, across all workers.",
)
@option("--per", type=DURATION, help="Period of --starts.  [default: 1s]")
@option("--remove", is_flag=True, help="Remove a limit that was set here, and restore the limit in the code.")
def limit(
    call: Invocation, rate: float | None, type_: str | None, max_types: int | None, **fleet: Unpack[FleetOptions]
) -> None:
    """Limit each worker to RATE task starts per second, for all types or for one; 0 removes the limit.

    --concurrency and --starts limit a type, a queue or one value of an argument across all workers. Without options,
    the command shows these limits.
    """
    if fleet["concurrency"] or fleet["starts"] or fleet["remove"]:
        if rate is not None or max_types is not None:
            raise click.UsageError("Pass a RATE or --max-types in a call without --concurrency, --starts and --remove.")
        _limit_fleet(call, type_, fleet)
        return
    if fleet["queue"] is not None or fleet["key"] is not None:
        raise click.UsageError("Pass --concurrency, --starts or --remove with --queue and --key.")
    if fleet["per"] is not None:
        raise click.UsageError("Pass --starts with --per.")
    if rate is None and max_types is None and type_ is None:
        _show_limits(call, call.run(_read_limits))
        return
    if rate is None and (max_types is None or type_ is not None):
        raise click.UsageError("Pass a RATE, or --max-types.")

    async def work(client: Client) -> Controls:
        controls = Controls()
        if max_types is not None:
            async with audited(client, "limit", f"{max_types} types"):
                controls = await client.controls.limit_types(max_types)
        if rate is not None:
            async with audited(
                client, "limit", f"{rate:g} per second" + (f", type {type_}" if type_ is not None else "")
            ):
                controls = await client.controls.limit_rate(rate, type=type_)
        return controls

    _show(call, call.run(work))


def _limit_fleet(call: Invocation, type_: str | None, given: FleetOptions) -> None:
    scopes = {"type": type_, "queue": given["queue"], "key": given["key"]}
    named = [f"{prefix}:{name}" for prefix, name in scopes.items() if name is not None]
    if len(named) != 1:
        raise click.UsageError("Pass one of --type, --queue and --key.")
    if given["remove"] and (given["concurrency"] or given["starts"]):
        raise click.UsageError("Pass --remove without --concurrency and --starts.")
    if given["per"] is not None and given["starts"] is None:
        raise click.UsageError("Pass --starts with --per.")
    per = 1.0 if given["per"] is None else given["per"]
    limit = Limit(concurrency=given["concurrency"] or 0, rate=given["starts"] or 0, per=per)

    async def work(client: Client) -> list[LimitStatus]:
        described = "as in the code" if given["remove"] else describe_limit(limit)
        async with audited(client, "limit", f"{named[0]}: {described}"):
            await client.controls.limit_fleet(named[0], None if given["remove"] else limit)
        return await _read_limits(client)

    _show_limits(call, call.run(work))


async def _read_limits(client: Client) -> list[LimitStatus]:
    return await limit_statuses(client.engine, await client.controls.in_force())


def _show_limits(call: Invocation, limits: list[LimitStatus]) -> None:
    if call.json:
        call.print_json([msgspec.to_builtins(each) for each in limits])
        return
    if not limits:
        call.console.print(Text("no limits across all workers", style="green"))
    for each in limits:
        source = "set here" if each.is_live else "in the code"
        waits = "" if each.waiting is None else f", {plural(each.waiting)} waiting"
        line = f"{each.scope.replace(':', ' ', 1)}: {each.numbers} ({source}){waits}"
        call.console.print(Text(clean(line), style="cyan"), soft_wrap=True)
        for group in each.groups[:_MAX_GROUPS]:
            for text in _group_lines(group, is_exact=each.is_exact):
                call.console.print(Text(clean(f"  {text}")), soft_wrap=True)
        if each.group_count > _MAX_GROUPS:
            call.console.print(Text(f"  and {each.group_count - _MAX_GROUPS:,} more; --json shows up to {MAX_GROUPS}"))


def _group_lines(group: GroupStatus, *, is_exact: bool) -> list[str]:
    """Such as: customer_id=42: 5 of 5 running, 12 waiting for a slot; then who holds the slots."""
    if not group.group and not group.running and not group.waits_for:
        return []  # nothing to add to the line of the limit
    running = f"{group.running} of {group.concurrency}" if group.concurrency else f"{group.running}"
    of_type = f" ({group.type})" if group.type and group.group else ""
    waiting = f", {'' if is_exact else 'at least '}{group.waiting:,} waiting" if group.group else ""
    waits_for = f"; the next task waits for {' and '.join(group.waits_for)}" if group.waits_for else ""
    lines = [f"{group.name or 'all'}{of_type}: {running} running{waiting}{waits_for}"]
    lines += [f"  {holder.task_id} in {holder.worker_id}" for holder in group.holders[:_MAX_HOLDERS]]
    if group.running > _MAX_HOLDERS:
        lines.append(f"  and {group.running - _MAX_HOLDERS:,} more")
    return lines


def _pause_or_resume(call: Invocation, verb: Literal["pause", "resume"], **names: tuple[str, ...]) -> None:
    async def work(client: Client) -> Controls:
        change = client.controls.pause if verb == "pause" else client.controls.resume
        async with audited(client, verb, names_in_words(**names)):
            return await change(**names)

    _show(call, call.run(work))


def _show(call: Invocation, controls: Controls) -> None:
    if call.json:
        call.print_json(controls_view(controls))
        return
    for line in controls_lines(controls) or [Text("nothing is paused or limited", style="green")]:
        call.console.print(line)


def controls_view(controls: Controls) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(controls)
    return view | {name: sorted(view[name]) for name in ("paused_queues", "paused_types", "draining")}


def controls_lines(controls: Controls) -> list[Text]:
    """One line for each pause, drain and limit."""
    lines = [Text("everything is paused", style="yellow")] if controls.paused else []
    for name, paused in (("queues", controls.paused_queues), ("types", controls.paused_types)):
        if paused:
            lines.append(Text(clean(f"paused {name}: {', '.join(sorted(paused))}"), style="yellow"))
    if controls.draining:
        lines.append(Text(clean(f"draining workers: {', '.join(sorted(controls.draining))}"), style="yellow"))
    if controls.rate_limit:
        lines.append(Text(f"each worker starts at most {plural(controls.rate_limit)} per second", style="cyan"))
    for name, rate in sorted(controls.rate_limits.items()):
        text = f"at most {rate:g} per second" if rate else "no limit, which overrides the limit in the code"
        lines.append(Text(clean(f"{name}: {text}"), style="cyan"))
    for scope, limit in sorted(controls.limits.items()):
        text = f"{scope.replace(':', ' ', 1)}: {describe_limit(limit)} across all workers"
        lines.append(Text(clean(text), style="cyan"))
    if controls.max_types is not None:
        text = f"at most {plural(controls.max_types, 'type')}" if controls.max_types else "any number of types"
        lines.append(Text(f"a queue may have {text} with unfinished tasks", style="cyan"))
    return lines
