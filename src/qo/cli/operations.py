"""`qo run-now`, `reschedule` and `priority`: change when pending tasks run, by id or by filter."""

from collections.abc import Sequence
from typing import Any, cast

import click

from qo import model
from qo.cli.bulk_actions import BulkAction, change, selection_options
from qo.cli.context import DURATION, PRIORITIES, Invocation, common, examples, option
from qo.client import Client, Priority
from qo.client.describe import parse_instant
from qo.clock import system_clock
from qo.model import PendingKind, Status

_PENDING = frozenset({Status.PENDING})
_LATER = (PendingKind.SCHEDULED, PendingKind.RETRYING)


async def _run_many_now(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([model.run_now(task_id) for task_id in ids])


_RUN_NOW = BulkAction(
    "run-now", "made due", (Status.PENDING,), _PENDING, Client.run_now, _run_many_now, age="created",
    default_kinds=_LATER, changes_pending=True,
)  # fmt: skip


@click.command(
    "run-now", epilog=examples("qo run-now 0f0190a4", "qo run-now --status retrying --type send_email --yes")
)
@common
@selection_options(_RUN_NOW, "scheduled and retrying")
def run_now(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Make tasks due now that are scheduled for later or wait for a retry.

    A task that is already due is refused, because it would lose its place; `qo explain` shows what it is waiting for.
    """
    return change(call, _RUN_NOW, ids, **options)


@click.command(
    "reschedule",
    epilog=examples(
        "qo reschedule 0f0190a4 --in 2h",
        "qo reschedule --at 2030-01-31T08:00:00Z --type report --yes",
    ),
)
@common
@selection_options(_RUN_NOW, "pending")
@option("--at", "run_at", metavar="TIME", help="The new ISO 8601 time; UTC unless it has an offset.")
@option("--in", "delay", type=DURATION, help="The new time from now: 90, 90s, 5m, 2h, 7d.")
def reschedule(
    call: Invocation, ids: tuple[str, ...], *, run_at: str | None, delay: float | None, **options: Any
) -> int:
    """Change when pending tasks become due. A time in the past means now."""
    if (run_at is None) == (delay is None):
        raise click.UsageError("Pass the new time with --at TIME or with --in DURATION.")
    at = parse_instant("--at", run_at) if run_at is not None else system_clock() + (delay or 0.0)

    async def change_one(client: Client, task_id: str) -> None:
        await client.reschedule(task_id, at)

    async def change_many(client: Client, some: Sequence[str]) -> list[bool]:
        return await client.apply([*map(client.reschedule_change(at), some)])

    action = BulkAction(
        "reschedule", "rescheduled", (Status.PENDING,), _PENDING, change_one, change_many, age="created",
        changes_pending=True,
    )  # fmt: skip
    return change(call, action, ids, **options)


@click.command(
    "priority",
    epilog=examples("qo priority 0f0190a4 --to high", "qo priority --to 8 --type report --queue default --yes"),
)
@common
@selection_options(_RUN_NOW, "pending")
@option("--to", "level", metavar="LEVEL", required=True, help=f"The new priority: 0 to 9, lower first; {PRIORITIES}.")
def priority(call: Invocation, ids: tuple[str, ...], *, level: str, **options: Any) -> int:
    """Change the priority of pending tasks. They rank as if they had been submitted with it."""
    new = cast("Priority", model.level(level))

    async def change_one(client: Client, task_id: str) -> None:
        await client.set_priority(task_id, new)

    async def change_many(client: Client, some: Sequence[str]) -> list[bool]:
        return await client.apply([*map(client.priority_change(new), some)])

    action = BulkAction(
        "priority", f"moved to priority {new}", (Status.PENDING,), _PENDING, change_one, change_many,
        age="created", changes_pending=True,
    )  # fmt: skip
    return change(call, action, ids, **options)
