"""What pause, resume and limit share: the switches all workers obey, shown after the change."""

from typing import Any

import msgspec
from rich.text import Text

from qo.cli.context import Invocation
from qo.cli.output import clean
from qo.notes import Controls


def answer(call: Invocation, control: Controls) -> None:
    if call.json:
        call.answer(control_view(control))
        return
    for line in control_lines(control) or [Text("nothing is paused or limited", style="green")]:
        call.out.print(line)


def control_view(control: Controls) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(control)
    return view | {name: sorted(view[name]) for name in ("paused_queues", "paused_types", "draining")}


def control_lines(control: Controls) -> list[Text]:
    """What is switched off or limited, a line each."""
    lines = [Text("everything is paused", style="yellow")] if control.paused else []
    for name, paused in (("queues", control.paused_queues), ("types", control.paused_types)):
        if paused:
            lines.append(Text(clean(f"paused {name}: {', '.join(sorted(paused))}"), style="yellow"))
    if control.draining:
        lines.append(Text(clean(f"draining workers: {', '.join(sorted(control.draining))}"), style="yellow"))
    if control.rate_limit:
        lines.append(Text(f"every worker starts at most {control.rate_limit:g} tasks a second", style="cyan"))
    for name, rate in sorted(control.rate_limits.items()):
        limit = f"at most {rate:g} a second" if rate else "no limit, whatever the code says"
        lines.append(Text(clean(f"{name}: {limit}"), style="cyan"))
    if control.max_types is not None:
        limit = f"at most {control.max_types:,}" if control.max_types else "any number of"
        lines.append(Text(f"a queue may have {limit} types of unfinished tasks", style="cyan"))
    return lines
