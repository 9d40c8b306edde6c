"""`qo workflow`: list workflows, show one as a tree, cancel and replay it."""

from collections.abc import Iterator, Sequence
from itertools import islice

import click
from msgspec import to_builtins
from rich.text import Text

from qo.cli.audit import audited
from qo.cli.context import CommandGroup, Invocation, common, examples, option
from qo.cli.output import age, duration
from qo.cli.rich_output import STYLES, data, table
from qo.client import Client
from qo.client.workflow_view import WorkflowNodeView, workflow_document, workflow_summary
from qo.clock import system_clock
from qo.codec import shown_text
from qo.model import PendingKind, Status, WorkflowStatus, plural
from qo.safe_text import clean

_STATUS_STYLES = {
    WorkflowStatus.RUNNING: "yellow",
    WorkflowStatus.WAITING: "yellow",
    WorkflowStatus.COMPLETED: "green",
    WorkflowStatus.FAILED: "red",
    WorkflowStatus.CANCELLED: "magenta",
}
_MAX_LINES = 200  # tasks that `show` draws
_MAX_ERROR_LENGTH = 100  # characters


@click.group(
    "workflow", cls=CommandGroup, epilog=examples("qo workflow list", "qo workflow show import-3f9a0c2b41d7e6a5b8c0")
)
@common
def command(call: Invocation) -> None:
    """Show, cancel and replay workflows: tasks that wait for each other."""
    click.get_current_context().find_root().obj = call  # options given before `list` apply to it


@command.command("list", epilog=examples("qo workflow list", "qo workflow list --json | jq '.workflows[].id'"))
@common
@option("--limit", type=click.IntRange(1, 500), default=50, help="Maximum number of workflows.")
def list_(call: Invocation, limit: int) -> None:
    """List workflows, newest first: unfinished ones, and those of the 1,000 newest tasks."""
    found = call.run(lambda client: client.workflows.list(limit=limit))
    if call.json:
        call.print_json({"workflows": [to_builtins(workflow_summary(each)) for each in found]})
        return
    if not found:
        call.console.print(Text("no workflows", style="dim"))
        return
    rows = table("workflow", "status", "done", "total", "failed", "age", right=("done", "total", "failed"))
    now = system_clock()
    for each in found:
        done = sum(each.counts.get(status.value, 0) for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED))
        numbers = (done, each.total, each.counts.get(Status.FAILED.value, 0))
        rows.add_row(
            data(each.id),
            Text(each.status, style=_STATUS_STYLES[each.status]),
            *(Text(f"{number:,}") for number in numbers),
            Text(age(now - each.created_at)),
        )
    call.console.print(rows)


@command.command("show", epilog=examples("qo workflow show ID", "qo workflow show ID --json | jq '.nodes[].status'"))
@common
@click.argument("workflow_id", metavar="ID")
def show(call: Invocation, workflow_id: str) -> None:
    """Show a workflow and its tasks.

    Each task is drawn below the last of its parents, with the numbers of the others.
    """
    view = call.run(lambda client: client.workflows.read(workflow_id))
    if call.json:
        call.print_json(to_builtins(workflow_document(view)))
        return
    counts = ", ".join(f"{number:,} {status}" for status, number in view.counts.items())
    call.console.print(
        Text.assemble(clean(view.id), " ", (view.status, _STATUS_STYLES[view.status]), f"  {counts}"), soft_wrap=True
    )
    for line in islice(tree(view.nodes), _MAX_LINES):  # the indents of a long chain take much memory
        call.console.print(line, soft_wrap=True)
    if (left := len(view.nodes) - _MAX_LINES) > 0:
        call.console.print(Text(f"and {plural(left)} more; --json shows all", style="dim"))


@command.command("cancel", epilog=examples("qo workflow cancel import-3f9a0c2b41d7e6a5b8c0"))
@common
@click.argument("workflow_id", metavar="ID")
def cancel(call: Invocation, workflow_id: str) -> None:
    """Cancel all unfinished tasks of a workflow."""

    async def work(client: Client) -> int:
        async with audited(client, "workflow.cancel", f"workflow {workflow_id}") as action:
            action.number = 0
            return await client.workflows.cancel(workflow_id, progress=action.count)

    _report(call, "cancelled", workflow_id, call.run(work))


@command.command(
    "replay", epilog=examples("qo workflow replay import-3f9a0c2b41d7e6a5b8c0", "qo workflow replay ID --from 3")
)
@common
@click.argument("workflow_id", metavar="ID")
@option(
    "--from", "start", multiple=True, help="The number or id of a task: rerun it and everything that depends on it."
)
def replay(call: Invocation, workflow_id: str, start: tuple[str, ...]) -> None:
    """Rerun the tasks of a workflow that failed or were cancelled. Tasks that depend on them follow."""
    chosen = [int(each) if each.isdecimal() and len(each) <= len("10000") else each for each in start]

    async def work(client: Client) -> int:
        async with audited(client, "workflow.replay", f"workflow {workflow_id}") as action:
            action.number = 0
            return await client.workflows.replay(workflow_id, chosen, progress=action.count)

    _report(call, "replayed", workflow_id, call.run(work))


def _report(call: Invocation, verb: str, workflow_id: str, number: int) -> None:
    if call.json:
        call.print_json({"id": workflow_id, verb: number})
    else:
        call.console.print(Text(f"{verb} {plural(number)} of {clean(workflow_id)}"), soft_wrap=True)


def tree(nodes: Sequence[WorkflowNodeView]) -> Iterator[Text]:
    """The tasks as lines: each below the last of its parents, which was drawn before."""
    below: dict[int | None, list[WorkflowNodeView]] = {}
    for node in nodes:
        below.setdefault(node.parents[-1] if node.parents else None, []).append(node)
    waiting = [(node, "", "") for node in reversed(below.get(None, []))]  # node, its indent, its children's indent
    while waiting:
        node, own, inner = waiting.pop()
        yield Text.assemble(own, *_line(node))
        children = below.get(node.index, [])
        last = len(children) - 1
        for at, child in reversed(list(enumerate(children))):
            branch, stem = ("└─ ", "   ") if at == last else ("├─ ", "│  ")
            waiting.append((child, inner + branch, inner + stem))


def _line(node: WorkflowNodeView) -> Iterator[str | tuple[str, str]]:
    yield f"{node.index} {clean(node.type)} "
    yield _state(node)
    others = node.parents[:-1]
    if others:
        yield f"  after {', '.join(map(str, others[:5]))}{' …' if len(others) > 5 else ''}"  # noqa: PLR2004 - as above
    if node.waits_for:
        yield f"  waits for {len(node.waits_for):,} of {plural(len(node.parents))}"
    if node.started_at is not None and node.completed_at is not None:
        yield f"  {duration(node.completed_at - node.started_at)}"
    if node.error is not None and node.status in {Status.FAILED, Status.CANCELLED}:
        yield f"  {clean(shown_text(node.error))[:_MAX_ERROR_LENGTH]}"


def _state(node: WorkflowNodeView) -> tuple[str, str]:
    if not node.is_live:
        return "dropped", "dim"
    if node.status is None:
        return "missing", "red"
    if node.pending_kind is PendingKind.BLOCKED:
        return PendingKind.BLOCKED.value, "dim"
    return node.status.value, STYLES[node.status]
