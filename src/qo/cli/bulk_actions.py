"""Commands that change tasks by id or by filter: replay, cancel, archive, delete, run-now, reschedule and priority."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import click

from qo import model
from qo.cli.bulk_change import BulkAction, change, selection_options
from qo.cli.context import DURATION, PRIORITIES, Invocation, common, examples, option
from qo.client import Client, Priority
from qo.client.describe import parse_instant
from qo.clock import system_clock
from qo.model import FINISHED, STATUSES, UNFINISHED, Guard, PendingKind, Status

_PENDING = frozenset({Status.PENDING})
_LATER = (PendingKind.SCHEDULED, PendingKind.RETRYING)


async def _replay_many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([model.replay(task_id) for task_id in ids])


async def _replay_finished_many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([model.replay_finished(task_id) for task_id in ids])


async def _cancel_and_delete_many(client: Client, ids: Sequence[str]) -> list[bool]:
    await client.apply([model.withdraw(task_id) for task_id in ids])
    return await client.engine.delete(list(ids))


async def _cancel_many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([model.cancel(task_id) for task_id in ids])


async def _archive_many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([model.archive(task_id) for task_id in ids])


async def _delete_many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.engine.delete(list(ids))


_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
_REPLAY = BulkAction("replay", "replayed", (Status.FAILED,), STATUSES[Guard.REPLAYABLE], Client.replay, _replay_many)
_CANCEL = BulkAction(
    "cancel", "cancelled", (Status.PENDING, Status.RUNNING), UNFINISHED, Client.cancel, _cancel_many, age="created",
    changes_pending=True,
)  # fmt: skip
_ARCHIVE = BulkAction("archive", "archived", _ENDED, STATUSES[Guard.ENDED], Client.archive, _archive_many)
_DELETE = BulkAction("delete", "deleted", (*_ENDED, Status.ARCHIVED), FINISHED, Client.delete, _delete_many)
_REPLAY_FINISHED = _REPLAY._replace(
    default_statuses=(Status.COMPLETED,),
    allowed_statuses=FINISHED,
    change_one=partial(Client.replay, completed=True),
    change_many=_replay_finished_many,
)
_CANCEL_AND_DELETE = _DELETE._replace(
    default_statuses=(Status.PENDING,),
    allowed_statuses=FINISHED | {Status.PENDING},
    change_one=partial(Client.delete, cancel=True),
    change_many=_cancel_and_delete_many,
    age="created",
    changes_pending=True,
)


def _examples(name: str, *filters: str) -> str:
    return examples(f"qo {name} 0f0190a4-... 1a0190b7-...", *(f"qo {name} {options}" for options in filters))


@click.command(
    "replay", epilog=_examples("replay", "--status failed --type send_email", "--status failed --older-than 1h --yes")
)
@common
@selection_options(_REPLAY, "failed; with --completed: completed")
@option("--completed", is_flag=True, help="Also replay completed tasks. They lose their results.")
def replay(call: Invocation, ids: tuple[str, ...], *, completed: bool, **options: Any) -> int:
    """Make tasks pending again and reset their failures.

    Applies to failed, cancelled and archived tasks, with --completed also to completed ones.
    """
    return change(call, _REPLAY_FINISHED if completed else _REPLAY, ids, **options)


@click.command(
    "cancel", epilog=_examples("cancel", "--status pending --queue mail", "--type crawl --older-than 2d --yes")
)
@common
@selection_options(_CANCEL, "pending and running")
def cancel(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Cancel pending and running tasks.

    A worker that runs one of them stops it within 2 s on SQLite, Postgres,
    Redis and HTTP, and at its next lease renewal on a bucket.
    """
    return change(call, _CANCEL, ids, **options)


@click.command("archive", epilog=_examples("archive", "--status completed --older-than 7d --yes"))
@common
@selection_options(_ARCHIVE, "completed, failed and cancelled")
def archive(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Remove finished tasks from the default listing. They keep their history and can be replayed."""
    return change(call, _ARCHIVE, ids, **options)


@click.command("delete", epilog=_examples("delete", "--status archived --older-than 30d --yes"))
@common
@selection_options(_DELETE, "all finished; with --cancel: pending")
@option("--cancel", "cancel_first", is_flag=True, help="Cancel pending tasks first, such as retrying ones.")
def delete(call: Invocation, ids: tuple[str, ...], *, cancel_first: bool, **options: Any) -> int:
    """Delete finished tasks and their history. This cannot be undone.

    With --cancel, pending tasks are cancelled and deleted too: `--cancel --status retrying`. A damaged task can be
    deleted by the ID that `qo doctor` shows.
    """
    return change(call, _CANCEL_AND_DELETE if cancel_first else _DELETE, ids, **options)


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
