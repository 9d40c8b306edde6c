"""Task ids on the command line: complete, or a unique prefix."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from qo.cli.completion import complete_ids
from qo.client import Client
from qo.errors import InvalidTask, TaskNotFound
from qo.model import Filter, Task, cursor, is_id, show

_MIN_DIGITS = 4
_MAX_READ = 10_000  # tasks that are read to find one by the beginning of its id
_PAGE_SIZE = 500
_MAX_SHOWN = 5
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]*")
_TIME_DIGITS = 11  # hexadecimal digits of milliseconds after the first digit of an id
_SLACK = 3600.0  # seconds by which a producer's clock may differ from the store's


class TaskId(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        return str(value).strip().lower()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        return complete_ids(ctx, incomplete)


TASK_ID = TaskId()


async def whole_ids(client: Client, given: Sequence[str]) -> tuple[str, ...]:
    """The ids of tasks that are given in full or by a prefix, without duplicates.

    The beginning of an id is searched among the tasks created at the time that it contains, then among the newest:
    at most 10,000 of each. Raises InvalidTask for an ambiguous one, and TaskNotFound.
    """
    return tuple(dict.fromkeys([await _whole_id(client, text) for text in given]))


async def _whole_id(client: Client, text: str) -> str:
    if is_id(text):
        return text
    if len(text.replace("-", "")) < _MIN_DIGITS or not _PREFIX.fullmatch(text):
        raise InvalidTask("id", f"{show(text)} is not an id, nor the first {_MIN_DIGITS} or more digits of one")
    found: dict[str, Task] = {}
    async for task in _near(client, text):
        if task.id.startswith(text):
            found[task.id] = task
        if len(found) > _MAX_SHOWN:
            break
    if len(found) == 1:
        return next(iter(found))
    if found:
        some = ", ".join(f"{task.id} ({task.type})" for task in list(found.values())[:_MAX_SHOWN])
        more = " and more" if len(found) > _MAX_SHOWN else ""
        raise InvalidTask("id", f"{text} is the beginning of several ids: {some}{more}; enter more digits")
    raise TaskNotFound(
        f"no id begins with {text} among the tasks of its time and the newest {_MAX_READ:,}; pass the whole id",
        task_id=text,
    )


async def _near(client: Client, prefix: str) -> AsyncIterator[Task]:
    """Tasks whose ids may begin with this: those created at the time in the id, then the newest ones."""
    where = Filter(shards=(prefix[0],))
    first, last = _times(prefix)
    async for task in _read(client, where, created_before=last + _SLACK):
        if task.created_at < first - _SLACK:
            break
        yield task
    async for task in _read(client, where):
        yield task


async def _read(client: Client, where: Filter, *, created_before: float | None = None) -> AsyncIterator[Task]:
    after = ""
    for _ in range(_MAX_READ // _PAGE_SIZE):
        page = await client.engine.find_without_values(
            where, limit=_PAGE_SIZE, after=after, created_before=created_before
        )
        for task in page:
            yield task
        if len(page) < _PAGE_SIZE:
            return
        after = cursor(page[-1])


def _times(prefix: str) -> tuple[float, float]:
    """The first and the last instant at which an id with this beginning can have been made (ids.py)."""
    digits = prefix.replace("-", "")[1 : 1 + _TIME_DIGITS]
    first, last = digits.ljust(_TIME_DIGITS, "0"), digits.ljust(_TIME_DIGITS, "f")
    return int(first, 16) / 1000, int(last, 16) / 1000
