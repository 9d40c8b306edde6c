"""`qo explain`: why tasks wait."""

from typing import Any

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples
from qo.cli.rich_output import STYLES
from qo.cli.task_ids import TASK_ID, whole_ids
from qo.client import Client
from qo.explanation import Explanation
from qo.terminal_text import clean


@click.command("explain", epilog=examples("qo explain 0f0190a4", "qo explain ID --json | jq -r '.reasons[].text'"))
@common
@click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
def command(call: Invocation, ids: tuple[str, ...]) -> None:
    """Explain why tasks wait: paused, due later, no worker for the type or capability, all slots busy, others ahead.

    With --json: an object for one id, a list for several. A reason has a `kind`, a `text`, and `is_blocking`, which is
    true if the task does not start before the reason is gone.
    """

    async def work(client: Client) -> list[Explanation]:
        return [await client.explain(task_id) for task_id in await whole_ids(client, ids)]

    found = call.run(work)
    if call.json:
        views = [explanation_view(each) for each in found]
        call.print_json(views[0] if len(ids) == 1 else views)
        return
    for each in found:
        title = Text.assemble(each.task_id, " ", (each.kind or each.status, STYLES[each.status]))
        call.console.print(title, soft_wrap=True)
        for reason in each.reasons:
            line = Text(f"  {clean(reason.text)}", style="yellow" if reason.is_blocking else "")
            call.console.print(line, soft_wrap=True)


def explanation_view(explanation: Explanation) -> dict[str, Any]:
    return {
        "id": explanation.task_id,
        "status": explanation.status.value,
        "pending_kind": None if explanation.kind is None else explanation.kind.value,
        "reasons": [
            {"kind": reason.kind, "text": reason.text, "is_blocking": reason.is_blocking}
            for reason in explanation.reasons
        ],
    }
