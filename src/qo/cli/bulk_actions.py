"""What replay, cancel, archive and delete share: tasks by id or by filter, one answer for each."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click
from rich.text import Text

from qo.cli.audited import audited, names_in_words
from qo.cli.context import Invocation, examples, option
from qo.cli.exit_codes import Exit, code_of
from qo.cli.output import plural, print_error
from qo.cli.params import DURATION, TYPES, Names, together, unique
from qo.client import Client
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, QoError
from qo.model import Filter, Status, check_id

PAGE = 500
Function = TypeVar("Function", bound=Callable[..., Any])
One = Callable[[Client, str], Awaitable[None]]
Many = Callable[[Client, Sequence[str]], Awaitable[list[bool]]]


class Verb(NamedTuple):
    name: str
    done: str  # its past
    takes: tuple[Status, ...]  # what a filter without --status means
    may: frozenset[Status]  # what a filter may ask for
    one: One
    many: Many
    age: str = "finished"  # what --older-than counts from


class Chosen(NamedTuple):
    """What the options chose by."""

    statuses: tuple[str, ...]
    types: tuple[tuple[str, ...], ...]
    queues: tuple[tuple[str, ...], ...]
    older_than: float | None

    def __bool__(self) -> bool:
        return bool(self.statuses or self.types or self.queues) or self.older_than is not None


def choosing(verb_name: str, takes: str, age: str = "finished") -> Callable[[Function], Function]:
    """The argument and options by which tasks are chosen."""

    def decorate(function: Function) -> Function:
        several = "repeat, or use commas."
        for add in reversed(
            (
                click.argument("ids", nargs=-1, metavar="[ID]..."),
                option("--status", "statuses", multiple=True, metavar="STATUS", help=f"Only these  [default: {takes}]"),
                option("--type", "types", type=TYPES, multiple=True, help=f"Only these types; {several}"),
                option("--queue", "queues", type=Names("queue"), multiple=True, help=f"Only these queues; {several}"),
                option(
                    "--older-than", type=DURATION, help=f"Only tasks {age} at least this long ago: 90s, 5m, 2h, 7d."
                ),
                option("--yes", is_flag=True, help=f"{verb_name.capitalize()} what the filter matches without asking."),
            )
        ):
            function = add(function)
        return function

    return decorate


def example(verb: str, *filters: str) -> str:
    return examples(f"qo {verb} 0f0190a4-... 1a0190b7-...", *(f"qo {verb} {options}" for options in filters))


def steer(call: Invocation, verb: Verb, ids: tuple[str, ...], *, yes: bool, **options: Any) -> int:
    chosen = Chosen(**options)
    if ids and chosen:
        raise click.UsageError("Give ids or a filter, not both.")
    if ids:
        return _by_id(call, verb, unique(ids))
    if not chosen:
        raise click.UsageError(f"Give the ids of tasks to {verb.name}, or a filter such as --status {verb.takes[0]}.")
    return _by_filter(call, verb, chosen, yes=yes)


def _by_id(call: Invocation, verb: Verb, ids: tuple[str, ...]) -> int:
    done: list[str] = []
    refused: list[tuple[str, QoError]] = []
    for task_id in ids:
        check_id(task_id)  # a slip of the pen is told before anything is done

    async def work(client: Client) -> None:
        async with audited(client, verb.name) as action:
            action.number = 0
            for task_id in ids:
                try:
                    await verb.one(client, task_id)
                except QoError as error:
                    refused.append((task_id, error))
                    if not isinstance(error, OutcomeUnknown):
                        continue
                    action.is_unknown = True
                else:
                    done.append(task_id)
                    action.number = len(done)
                action.task_ids.append(task_id)

    call.ask(work)
    if call.json:
        problems = [{"id": task_id, "error": str(error), "code": int(code_of(error))} for task_id, error in refused]
        call.answer({"done": len(done), "ids": done, "refused": problems})
    else:
        _show(call, verb, done, refused)
    return max((code_of(error) for _, error in refused), default=Exit.CLEAN)


def _show(call: Invocation, verb: Verb, done: list[str], refused: list[tuple[str, QoError]]) -> None:
    for task_id in done:
        call.out.print(Text.assemble((f"{verb.done} ", "green"), task_id))
    sys.stdout.flush()
    for _, error in refused:
        print_error(str(error))


def _by_filter(call: Invocation, verb: Verb, chosen: Chosen, *, yes: bool) -> int:
    where, since = _filter(verb, chosen)

    async def find(client: Client) -> list[str]:
        return [task.id async for task in client.all(where) if since is None or task.created_at <= since]

    async def change(client: Client) -> int:
        async with audited(client, verb.name, _in_words(where, chosen)) as action:
            action.number = 0
            for at in range(0, len(ids), PAGE):
                some = ids[at : at + PAGE]
                answers = await verb.many(client, some)
                action.number += sum(answers)
                action.task_ids += [each for each, changed in zip(some, answers, strict=True) if changed]
            return action.number

    ids = call.ask(find)
    if ids and not yes and not _confirmed(verb, len(ids)):
        print_error("nothing was changed")
        return Exit.ERROR
    done = call.ask(change) if ids else 0
    if call.json:
        call.answer({"matched": len(ids), "done": done})
    else:
        missed = f" ({plural(len(ids) - done)} changed meanwhile)" if done < len(ids) else ""
        call.out.print(Text(f"{plural(done)} {verb.done}{missed}", style="green" if done else "dim"))
    return Exit.CLEAN


def _filter(verb: Verb, chosen: Chosen) -> tuple[Filter, float | None]:
    """The filter, and the instant tasks must be created before where age means that."""
    statuses = tuple(_status(verb, name) for name in chosen.statuses) or verb.takes
    where = Filter(statuses=statuses, types=together(chosen.types), queues=together(chosen.queues))
    if chosen.older_than is None or verb.age == "finished":
        return Filter(**_fields(where), finished_for=chosen.older_than), None
    return where, system_clock() - chosen.older_than


def _in_words(where: Filter, chosen: Chosen) -> str:
    words = names_in_words(status=where.statuses, type=where.types, queue=where.queues)
    return words if chosen.older_than is None else f"{words}, older than {chosen.older_than:g} s"


def _fields(where: Filter) -> dict[str, Any]:
    return {"statuses": where.statuses, "types": where.types, "queues": where.queues}


def _status(verb: Verb, name: str) -> Status:
    allowed = ", ".join(sorted(verb.may))
    if name.lower() not in verb.may:
        raise click.BadParameter(
            f"{name!r:.80} cannot be; {verb.name} takes tasks that are {allowed}.", param_hint="--status"
        )
    return Status(name.lower())


def _confirmed(verb: Verb, number: int) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{plural(number)} would be {verb.done}; say --yes to do it.")
    return click.confirm(f"{verb.name.capitalize()} {plural(number)}?", err=True)
