"""`qo doctor`: check a store for damage and wrong settings."""

import asyncio
from contextlib import suppress
from typing import Any

import click
from rich.text import Text

from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import Exit
from qo.cli.output import shown_progress
from qo.client import Client
from qo.damage import DAMAGED_TASKS, QUARANTINE, note_name
from qo.engines import examine, open_engine, schema_of
from qo.errors import InvalidSetting, InvalidTask, StorageError
from qo.model import Filter, Status, check_id, cursor, plural
from qo.reports import Finding
from qo.safe_text import clean, hide_password

_PAGE_SIZE = 500
_MAX_PAGES = 20
_MAX_SHOWN = 20
# Notes about objects of a bucket, which the findings of its layout name.
_BY_LAYOUT = (f"{QUARANTINE}log/", f"{QUARANTINE}submissions/")
_MARKS = {True: ("✔", "green"), False: ("✘", "bold red"), None: ("!", "yellow")}


@click.command("doctor", epilog=examples("qo doctor", "qo doctor sqlite:////var/lib/qo/qo.db"))
@common
@click.argument("store", required=False, metavar="[URL]")
def command(call: Invocation, store: str | None) -> int:
    """Check a store for damage and wrong settings. Exits with 1 if there is a problem.

    The command changes nothing in the store, except that a task that cannot be read is quarantined, and a quarantined
    task that can be read again is released.
    """
    url = store or call.url
    with shown_progress():
        findings = asyncio.run(_examine(url))
    if call.json:
        call.print_json(
            {
                "url": hide_password(url),
                "ok": _is_healthy(findings),
                "findings": [_view(finding) for finding in findings],
            }
        )
    else:
        call.console.print(Text(hide_password(url), style="bold"))
        for finding in findings:
            mark, style = _MARKS[finding.ok]
            call.console.print(
                Text.assemble((f"{mark} ", style), clean(finding.name), (f"  {clean(finding.detail)}", "dim"))
            )
    return Exit.CLEAN if _is_healthy(findings) else Exit.ERROR


async def _examine(url: str) -> list[Finding]:
    findings = await examine(url)
    if not _is_healthy(findings):
        return findings
    try:
        schema = await schema_of(url)
        if schema is not None and not schema.is_current:  # opening the store would migrate it
            return findings
        return [*findings, await damage_finding(url)]
    except (StorageError, InvalidSetting) as error:
        return [*findings, Finding("damage", False, str(error))]


def _is_healthy(findings: list[Finding]) -> bool:
    return all(finding.ok is not False for finding in findings)


def _view(finding: Finding) -> dict[str, Any]:
    return {"name": finding.name, "ok": finding.ok, "detail": finding.detail}


async def damage_finding(url: str) -> Finding:
    """Read the newest tasks, which quarantines the damaged ones, and report what is in the quarantine."""
    async with Client(open_engine(url)) as client:
        for where in (Filter(), Filter(statuses=(Status.PENDING, Status.RUNNING))):
            after = ""
            for _ in range(_MAX_PAGES):
                page = await client.engine.find(where, limit=_PAGE_SIZE, after=after)
                if not page:
                    break
                after = cursor(page[-1])
        names = [note.name for note in await client.engine.notes(QUARANTINE)]
        tasks = [name.removeprefix(DAMAGED_TASKS) for name in names if name.startswith(DAMAGED_TASKS)]
        damaged = [task_id for task_id in tasks if not await _is_restored(client, task_id)]
    notes = [name.removeprefix(QUARANTINE) for name in names if not name.startswith((DAMAGED_TASKS, *_BY_LAYOUT))]
    if damaged:
        text = (
            f"{plural(len(damaged))} cannot be read and were quarantined; restore them from a backup, or remove them"
            f" with `qo delete`: {_shorten(damaged)}"
        )
        return Finding("damage", False, text)
    if notes:
        text = (
            f"{plural(len(notes), 'note')} could not be read; the bytes are kept under {QUARANTINE}: {_shorten(notes)}"
        )
        return Finding("damage", None, text)
    return Finding("damage", True, "no task and no note is in quarantine")


async def _is_restored(client: Client, task_id: str) -> bool:
    try:
        (task,) = await client.engine.get([check_id(task_id)])
    except InvalidTask:  # its id is invalid too
        return False
    if task is None:
        return False
    with suppress(StorageError):  # the credentials may only allow reading
        await client.engine.drop_note(note_name(task_id))  # otherwise the task counts as damaged once it is deleted
    return True


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (", …" if len(names) > _MAX_SHOWN else "")
