"""Commands that change tasks by id or by filter: replay, cancel, archive, delete, run-now, reschedule and priority."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import click
from msgspec.structs import replace
from rich.text import Text

from qo import model
from qo.cli.audit import audited, names_in_words
from qo.cli.context import DURATION, PRIORITIES, TYPES, Invocation, Names, common, examples, flatten, option, unique
from qo.cli.exit_codes import Exit, code_of
from qo.cli.output import print_error
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client, Priority
from qo.client.describe import parse_instant
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, QoError
from qo.model import FINISHED, STATUSES, UNFINISHED, Filter, Guard, PendingKind, Status, plural, statuses_and_kinds

_PAGE_SIZE = 500  # tasks changed by one call of the store
Function = TypeVar("Function", bound=Callable[..., Any])
ChangeOne = Callable[[Client, str], Awaitable[None]]
ChangeMany = Callable[[Client, Sequence[str]], Awaitable[list[bool]]]
_PENDING = frozenset({Status.PENDING})
_LATER = (PendingKind.SCHEDULED, PendingKind.RETRYING)


class BulkAction(NamedTuple):
    name: str
    past_tense: str
    default_statuses: tuple[Status, ...]  # for a filter without --status
    allowed_statuses: frozenset[Status]
    change_one: ChangeOne
    change_many: ChangeMany
    age: str = "finished"  # the time that --older-than refers to: "finished" or "created"
    default_kinds: tuple[PendingKind, ...] = ()
    changes_pending: bool = False  # --status may name kinds of pending tasks


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


class Selection(NamedTuple):
    """The values of the filter options."""

    statuses: tuple[str, ...]
    types: tuple[tuple[str, ...], ...]
    queues: tuple[tuple[str, ...], ...]
    older_than: float | None
    batch: str | None

    def __bool__(self) -> bool:
        return bool(self.statuses or self.types or self.queues or self.batch) or self.older_than is not None


def selection_options(action: BulkAction, default: str) -> Callable[[Function], Function]:
    """Add the argument and the options that select tasks. `default` names the statuses of a filter without --status."""

    def decorate(function: Function) -> Function:
        several = "repeat, or use commas."
        for add in reversed(
            (
                click.argument("ids", nargs=-1, type=TASK_ID, metavar="[ID]..."),
                option(
                    "--status",
                    "statuses",
                    multiple=True,
                    metavar="STATUS",
                    help=f"Only tasks with this status; repeat for more.  [default: {default}]",
                ),
                option("--type", "types", type=TYPES, multiple=True, help=f"Only these types; {several}"),
                option("--queue", "queues", type=Names("queue"), multiple=True, help=f"Only these queues; {several}"),
                option(
                    "--older-than",
                    type=DURATION,
                    help=f"Only tasks {action.age} at least this long ago: 90s, 5m, 2h, 7d.",
                ),
                option("--batch", metavar="ID", help="Only tasks of this batch: see qo batch."),
                option("--yes", is_flag=True, help="Do not ask for confirmation."),
            )
        ):
            function = add(function)
        return function

    return decorate


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


def change(call: Invocation, action: BulkAction, ids: tuple[str, ...], *, yes: bool, **options: Any) -> int:
    selection = Selection(**options)
    if ids and selection:
        raise click.UsageError("Pass task ids or a filter, not both.")
    if ids:
        return _by_id(call, action, unique(ids))
    if not selection:
        raise click.UsageError(f"Pass the ids of tasks, or a filter such as --status {action.default_statuses[0]}.")
    return _by_filter(call, action, selection, yes=yes)


def _by_id(call: Invocation, action: BulkAction, ids: tuple[str, ...]) -> int:
    done: list[str] = []
    refused: list[tuple[str, QoError]] = []

    async def work(client: Client) -> None:
        whole = await whole_ids(client, ids)  # reports a mistyped id before anything is changed
        async with audited(client, action.name) as record:
            record.number = 0
            for task_id in whole:
                try:
                    await action.change_one(client, task_id)
                except QoError as error:
                    refused.append((task_id, error))
                    if not isinstance(error, OutcomeUnknown):
                        continue
                    record.is_unknown = True
                else:
                    done.append(task_id)
                    record.number = len(done)
                record.task_ids.append(task_id)

    call.run(work)
    if call.json:
        problems = [{"id": task_id, "error": str(error), "code": int(code_of(error))} for task_id, error in refused]
        call.print_json({"done": len(done), "ids": done, "refused": problems})
    else:
        _show(call, action, done, refused)
    return max((code_of(error) for _, error in refused), default=Exit.CLEAN)


def _show(call: Invocation, action: BulkAction, done: list[str], refused: list[tuple[str, QoError]]) -> None:
    for task_id in done:
        call.console.print(Text.assemble((f"{action.past_tense} ", "green"), task_id))
    sys.stdout.flush()
    for _, error in refused:
        print_error(str(error))


def _by_filter(call: Invocation, action: BulkAction, selection: Selection, *, yes: bool) -> int:
    where, created_before = _filter(action, selection)

    async def find(client: Client) -> list[str]:
        return [
            task.id async for task in client.all(where) if created_before is None or task.created_at <= created_before
        ]

    async def change(client: Client) -> int:
        async with audited(client, action.name, _in_words(where, selection)) as record:
            record.number = 0
            for start in range(0, len(ids), _PAGE_SIZE):
                page = ids[start : start + _PAGE_SIZE]
                answers = await action.change_many(client, page)
                record.number += sum(answers)
                record.task_ids += [task_id for task_id, changed in zip(page, answers, strict=True) if changed]
            return record.number

    ids = call.run(find)
    if ids and not yes and not _confirmed(action, len(ids)):
        print_error("nothing was changed")
        return Exit.ERROR
    done = call.run(change) if ids else 0
    if call.json:
        call.print_json({"matched": len(ids), "done": done})
    else:
        missed = f" ({plural(len(ids) - done)} had changed in the meantime)" if done < len(ids) else ""
        call.console.print(Text(f"{plural(done)} {action.past_tense}{missed}", style="green" if done else "dim"))
    return Exit.CLEAN


def _filter(action: BulkAction, selection: Selection) -> tuple[Filter, float | None]:
    """The filter, and the latest creation time if --older-than refers to the creation."""
    statuses, kinds = statuses_and_kinds([_status(action, name) for name in selection.statuses])
    if not statuses:
        statuses, kinds = action.default_statuses, action.default_kinds
    where = Filter(statuses=statuses, types=flatten(selection.types), queues=flatten(selection.queues), pending=kinds)
    if selection.batch is not None:
        where = replace(where, batch=model.check_batch_id("batch", selection.batch))
    if selection.older_than is None or action.age == "finished":
        return replace(where, finished_for=selection.older_than), None
    return where, system_clock() - selection.older_than


def _in_words(where: Filter, selection: Selection) -> str:
    batch = [where.batch] if where.batch else []
    words = names_in_words(status=where.statuses, kind=where.pending, type=where.types, queue=where.queues, batch=batch)
    return words if selection.older_than is None else f"{words}, older than {selection.older_than:g} s"


def _status(action: BulkAction, name: str) -> str:
    names = {*action.allowed_statuses, *(PendingKind if action.changes_pending else ())}
    allowed = ", ".join(sorted(names))
    if name.lower() not in names:
        raise click.BadParameter(
            f"{name!r:.80} is not a status that {action.name} applies to; choose from {allowed}.", param_hint="--status"
        )
    return name.lower()


def _confirmed(action: BulkAction, number: int) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{plural(number)} would be {action.past_tense}; add --yes to confirm.")
    return click.confirm(f"{action.name.capitalize()} {plural(number)}?", err=True)
