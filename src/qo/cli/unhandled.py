"""Pending tasks that no worker handles, as the commands show them."""

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.text import Text

from qo.cli.output import clean, plural
from qo.client import Client
from qo.clock import system_clock
from qo.model import Status, Task
from qo.notes import NO_HANDLER, find_unhandled

_MAX_SHOWN = 10  # types

Lanes = Mapping[tuple[str, str], int]  # how many, by queue and type


def by_type(lanes: Lanes) -> dict[str, int]:
    numbers: Counter[str] = Counter()
    for (_, type_), number in lanes.items():
        numbers[type_] += number
    return dict(numbers.most_common())


def unhandled_note(types: Mapping[str, int]) -> Text:
    shown = ", ".join(f"{clean(type_)} ({plural(number)})" for type_, number in list(types.items())[:_MAX_SHOWN])
    more = f" and {len(types) - _MAX_SHOWN:,} more types" if len(types) > _MAX_SHOWN else ""
    return Text(f"{NO_HANDLER}: {shown}{more}", style="yellow")


async def find_unhandled_of(client: Client, tasks: Iterable[Task | None]) -> Lanes:
    """As `find_unhandled`, if one of these tasks is pending: else nobody is asked."""
    if not any(task is not None and task.status is Status.PENDING for task in tasks):
        return {}
    return await find_unhandled(client.engine, system_clock())


def is_unhandled(task: Task, lanes: Lanes) -> bool:
    return task.status is Status.PENDING and (task.queue, task.type) in lanes
