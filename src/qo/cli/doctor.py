"""`qo doctor`: can this store be trusted?"""

import asyncio
from typing import Any

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.cli.output import clean
from qo.cli.quarantine import damage_finding
from qo.engines import examine, schema_of
from qo.errors import InvalidSetting, StorageError
from qo.findings import Finding
from qo.url_secrets import hide_password

MARKS = {True: ("✔", "green"), False: ("✘", "bold red"), None: ("!", "yellow")}


@click.command("doctor", epilog=examples("qo doctor", "qo doctor sqlite:////var/lib/qo/qo.db"))
@common
@click.argument("store", required=False, metavar="[URL]")
def command(call: Invocation, store: str | None) -> int:
    """Check that a store can be trusted, and say in plain words what is wrong. Exits with 1 if anything is.

    Nothing is changed, but for this: a task that cannot be read is set aside and named, and the note about one that can
    be read again is removed.
    """
    url = store or call.url
    findings = asyncio.run(_examine(url))
    if call.json:
        call.answer({"url": hide_password(url), "ok": _sound(findings), "findings": [_view(one) for one in findings]})
    else:
        call.out.print(Text(hide_password(url), style="bold"))
        for one in findings:
            mark, style = MARKS[one.ok]
            call.out.print(Text.assemble((f"{mark} ", style), clean(one.name), (f"  {clean(one.detail)}", "dim")))
    return Exit.CLEAN if _sound(findings) else Exit.ERROR


async def _examine(url: str) -> list[Finding]:
    findings = await examine(url)
    if not _sound(findings):
        return findings
    try:
        schema = await schema_of(url)
        if schema is not None and not schema.is_current:  # to open it would change it
            return findings
        return [*findings, await damage_finding(url)]
    except (StorageError, InvalidSetting) as error:
        return [*findings, Finding("damage", False, str(error))]


def _sound(findings: list[Finding]) -> bool:
    return all(one.ok is not False for one in findings)


def _view(one: Finding) -> dict[str, Any]:
    return {"name": one.name, "ok": one.ok, "detail": one.detail}
