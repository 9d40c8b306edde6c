"""`qo list`: pages of tasks, as a table, as one JSON document, or as lines that `qo submit` reads."""

import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import click
from rich.text import Text

from qo.cli.completion import complete_workers
from qo.cli.context import STATUS, TYPES, Invocation, Names, Shards, common, examples, flatten, option
from qo.cli.output import compact
from qo.cli.rich_output import by_type, find_unhandled_of, task_table, unhandled_note
from qo.cli.task_lines import line_of
from qo.client import Client
from qo.clock import system_clock
from qo.codec import task_view
from qo.handled_types import Lanes, is_unhandled
from qo.model import Filter, Status, Task, check_batch_id, cursor, plural, statuses_and_kinds

_MAX_LIMIT = 10_000
_MAX_SORTED = 100_000  # tasks that --sort reads
_PAGE_SIZE = 500  # tasks per call with --all-pages
Page = tuple[list[Task], str | None]
_ORDERS: dict[str, Callable[[Task], Any]] = {
    "newest": lambda task: -task.created_at,
    "oldest": lambda task: task.created_at,
    "due": lambda task: task.due_at,
    "updated": lambda task: -task.updated_at,
    "priority": lambda task: (task.priority, task.created_at),
    "failures": lambda task: (-task.failures, task.created_at),
    "type": lambda task: (task.type, task.created_at),
}


@click.command(
    "list",
    epilog=examples(
        "qo list --status failed",
        "qo list --type send_email,report --limit 10",
        "qo list --status retrying --error 'connection refused' --sort due",
        "qo list --all-pages --json | jq '.tasks[].id'",
        "qo list --all-pages --sort oldest --json-lines --url sqlite:///old.db | qo submit - --url sqlite:///new.db",
    ),
)
@common
@option(
    "--status",
    "statuses",
    type=STATUS,
    multiple=True,
    help="Only tasks with this status; repeat for more. ready, scheduled, retrying and blocked are kinds of pending."
    "  [default: all but archived]",
)
@option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")
@option("--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas.")
@option("--text", metavar="TEXT", help="Only tasks with this text in their id, type, key, payload, result or error.")
@option("--error", metavar="TEXT", help="Only tasks with this text in their error.")
@option(
    "--worker",
    "worker_id",
    metavar="ID",
    shell_complete=lambda ctx, _, text: complete_workers(ctx, text),
    help="Only tasks that this worker runs or ran last.",
)
@option("--batch", metavar="ID", help="Only tasks of this batch: see qo batch.")
@option("--sort", type=click.Choice(list(_ORDERS)), default="newest", help="Order of the tasks.")
@option("--json-lines", is_flag=True, help="Print one line per task with the fields that `qo submit -` reads.")
@option("--shard", "shards", type=Shards(), help="Only ids that begin with these digits: 0, 0,8,f or 0-7.")
@option("--limit", type=click.IntRange(1, _MAX_LIMIT), default=50, help="Tasks per page.")
@option("--after", metavar="CURSOR", default="", help="Start after this position, the `next` of the previous page.")
@option("--all-pages", is_flag=True, help="Print all pages, not only the first.")
def list_(
    call: Invocation,
    *,
    shards: frozenset[str] | None,
    limit: int,
    after: str,
    all_pages: bool,
    sort: str,
    json_lines: bool,
    **given: Any,
) -> None:
    """List tasks, newest first. Archived tasks are only listed with --status archived.

    With --json: {"tasks": [...], "next": cursor or null}. `unhandled` is true for a pending task if no running worker
    handles its type. --text, --error and --sort read all tasks that match the other options, at most 100,000.
    """
    if json_lines and call.json:
        raise click.UsageError("Pass --json or --json-lines, not both.")
    if sort != "newest" and after:
        raise click.UsageError("--after continues a listing with --sort newest.")
    wanted = _wanted(given.pop("text"), given.pop("error"))
    where = _filter(shards=tuple(sorted(shards or ())), **given)

    async def work(client: Client) -> tuple[Page, Lanes]:
        if sort == "newest":
            page = await _read_pages(client, where, wanted, limit=None if all_pages else limit, after=after)
        else:
            page = await _read_sorted(client, where, wanted, sort), None
            page = page if all_pages else (page[0][:limit], None)
        return page, {} if json_lines else await find_unhandled_of(client, page[0])

    (tasks, next_position), unhandled = call.run(work)
    now = system_clock()
    if json_lines:
        for task in tasks:
            click.echo(compact(line_of(task, now)))
    elif call.json:
        views = [task_view(task, now) | {"unhandled": is_unhandled(task, unhandled)} for task in tasks]
        call.print_json({"tasks": views, "next": next_position})
    else:
        _show_page(call, tasks, next_position, unhandled)


def _filter(
    *,
    statuses: tuple[str, ...],
    types: tuple[tuple[str, ...], ...],
    queues: tuple[tuple[str, ...], ...],
    worker_id: str | None,
    shards: tuple[str, ...],
    batch: str | None,
) -> Filter:
    selected, kinds = statuses_and_kinds(statuses)
    return Filter(
        statuses=selected or tuple(status for status in Status if status is not Status.ARCHIVED),
        types=flatten(types),
        queues=flatten(queues),
        worker_id=worker_id,
        shards=shards,
        pending=kinds,
        batch=None if batch is None else check_batch_id("batch", batch),
    )


class _Texts(NamedTuple):
    """The texts that a task must contain, in lower case; empty: any."""

    text: str
    error: str

    def are_in(self, task: Task) -> bool:
        if self.error and self.error not in (task.error or "").lower():
            return False
        if not self.text:
            return True
        names = (task.id, task.type, task.idempotency_key or "", task.error or "")
        return any(self.text in name.lower() for name in names) or any(
            self.text in value.decode(errors="replace").lower() for value in (task.payload, task.result or b"")
        )


def _wanted(text: str | None, error: str | None) -> _Texts:
    return _Texts((text or "").lower(), (error or "").lower())


async def _read_pages(client: Client, where: Filter, wanted: _Texts, *, limit: int | None, after: str) -> Page:
    """Up to `limit` tasks, or all of them, and the position of the next page if there is one."""
    found: list[Task] = []
    read = 0
    size = _PAGE_SIZE if limit is None or any(wanted) else limit + 1  # one more shows whether there is a next page
    while page := await client.list(where, limit=size, after=after):
        for task in filter(wanted.are_in, page):
            if limit is not None and len(found) == limit:
                return found, cursor(found[-1])
            found.append(task)
        read += len(page)
        after = cursor(page[-1])
        if len(page) < size:
            break
        if any(wanted) and read >= _MAX_SORTED:
            return found, after
    return found, None


async def _read_sorted(client: Client, where: Filter, wanted: _Texts, sort: str) -> list[Task]:
    found: list[Task] = []
    async for task in client.all(where):
        if wanted.are_in(task):
            found.append(task)
        if len(found) == _MAX_SORTED:
            break
    return sorted(found, key=_ORDERS[sort])


def _show_page(call: Invocation, tasks: list[Task], next_position: str | None, unhandled: Lanes) -> None:
    if not tasks:
        call.console.print(Text("no tasks", style="dim"))
        return
    call.console.print(task_table(tasks, system_clock(), width=call.console.width))
    shown = {(task.queue, task.type) for task in tasks if is_unhandled(task, unhandled)}
    if shown:
        call.console.print(unhandled_note(by_type({lane: unhandled[lane] for lane in shown})), soft_wrap=True)
    if next_position is not None:
        more = f"{plural(len(tasks))} shown; more with --after {shlex.quote(next_position)} or --all-pages"
        call.console.print(Text(more, style="dim"), soft_wrap=True)
