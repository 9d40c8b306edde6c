"""One change of many tasks on the command line, chosen by ids or by a filter."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click
from msgspec.structs import replace
from rich.text import Text

from qo import model
from qo.cli.audit import audited, names_in_words
from qo.cli.context import DURATION, TYPES, Invocation, Names, flatten, option, unique
from qo.cli.exit_codes import Exit, code_of
from qo.cli.output import confirm, print_error
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, QoError
from qo.model import Filter, PendingKind, Status, plural, statuses_and_kinds

_PAGE_SIZE = 500  # tasks changed by one call of the store
Function = TypeVar("Function", bound=Callable[..., Any])
ChangeOne = Callable[[Client, str], Awaitable[None]]
ChangeMany = Callable[[Client, Sequence[str]], Awaitable[list[bool]]]


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


def change(call: Invocation, action: BulkAction, ids: tuple[str, ...], *, yes: bool, **options: Any) -> int:
    """Change the tasks with these ids, or those that the filter options select. Returns the exit code."""
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
    return confirm(f"{action.name.capitalize()} {plural(number)}?")
