"""`qo submit FILE`: submit tasks from JSON lines, in batches with a progress bar."""

import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from qo.cli.context import Invocation
from qo.cli.exit_codes import Exit
from qo.cli.output import print_error
from qo.cli.rich_output import console
from qo.cli.stdin_lines import stdin_lines
from qo.cli.task_lines import parse_task
from qo.client import Client, Settings
from qo.errors import InvalidTask, QoError
from qo.model import NewTask, plural

_BATCH_SIZE = 1000
_MAX_SHOWN = 20  # invalid lines that are printed; in a file of another format every line is invalid


class BadLine(InvalidTask):
    def __init__(self, number: int, error: InvalidTask) -> None:
        super().__init__(error.field, str(error).removeprefix(f"{error.field}: "))
        self.args = (f"line {number}: {error}",)
        self.number = number


class FileOutcome:
    """What happened to the lines of a file."""

    def __init__(self, *, keep_ids: bool) -> None:
        self.submitted = self.existing = 0
        self.ids: list[str] | None = [] if keep_ids else None
        self.bad: list[BadLine] = []


class BulkLine(NamedTuple):
    number: int
    text: bytes
    end: int  # offset of the line's end in the file, in bytes


def submit_file(call: Invocation, file: str, *, skip_invalid: bool) -> int:
    outcome = FileOutcome(keep_ids=call.json)

    if file != "-":
        _check(file, call.settings, outcome, skip_invalid=skip_invalid)

    async def work(client: Client) -> None:
        with _progress("submitting", file) as progress:
            async for batch, end in _batches(file, client.settings, outcome, skip_invalid=skip_invalid):
                await _send(client, batch, outcome)
                progress.update(progress.task_ids[0], completed=end, tasks=outcome.submitted + outcome.existing)

    try:
        call.run(work, create=True)
    except QoError as error:
        if outcome.submitted + outcome.existing:
            error.args = (f"{error} ({plural(outcome.submitted + outcome.existing)} before it were submitted)",)
        raise
    except KeyboardInterrupt:
        if not call.json:
            click.echo(f"\n{plural(outcome.submitted + outcome.existing)} submitted", err=True)
        raise
    return _print_outcome(call, outcome)


def _check(file: str, settings: Settings, outcome: FileOutcome, *, skip_invalid: bool) -> None:
    """Check the whole file before anything is submitted. Raises for invalid lines unless they are skipped."""
    with _open(file) as stream, _progress("checking", file) as progress:
        for line in _lines(stream):
            try:
                parse_task(line.text, settings)
            except InvalidTask as error:
                outcome.bad.append(BadLine(line.number, error))
            if line.number % _BATCH_SIZE == 0:
                progress.update(progress.task_ids[0], completed=line.end, tasks=line.number)
    if outcome.bad and not skip_invalid:
        first = outcome.bad[0]
        if len(outcome.bad) > 1:
            others = ", ".join(str(bad.number) for bad in outcome.bad[1:_MAX_SHOWN])
            first.args = (
                f"{first} (also invalid: line {others}{' and more' if len(outcome.bad) > _MAX_SHOWN else ''})",
            )
        first.args = (f"{first}; nothing was submitted",)
        raise first


async def _batches(
    file: str, settings: Settings, outcome: FileOutcome, *, skip_invalid: bool
) -> AsyncIterator[tuple[list[NewTask], int]]:
    """The tasks of each batch of lines, and the offset of its end."""
    async for lines in _line_batches(file):
        batch: list[NewTask] = []
        for line in lines:
            try:
                batch.append(parse_task(line.text, settings))
            except InvalidTask as error:
                if not skip_invalid:
                    if batch:
                        yield batch, line.end  # the lines before the invalid one are submitted
                    raise BadLine(line.number, error) from error
                if file == "-":  # the lines of a file have been checked
                    outcome.bad.append(BadLine(line.number, error))
        if batch:
            yield batch, lines[-1].end


async def _line_batches(file: str) -> AsyncIterator[list[BulkLine]]:
    if file == "-":
        number = end = 0
        async for texts in stdin_lines(_BATCH_SIZE):
            lines = list(_lines(texts, number, end))
            number, end = number + len(texts), end + sum(map(len, texts))
            if lines:
                yield lines
        return
    with _open(file) as stream:
        numbered = _lines(stream)
        while lines := list(islice(numbered, _BATCH_SIZE)):
            yield lines


async def _send(client: Client, batch: list[NewTask], outcome: FileOutcome) -> None:
    for handle in await client.submit_many(batch):
        outcome.submitted += handle.new
        outcome.existing += not handle.new
        if outcome.ids is not None:
            outcome.ids.append(handle.id)


def _lines(texts: Iterable[bytes], before: int = 0, end: int = 0) -> Iterator[BulkLine]:
    """The lines that are not empty, of those after the first `before`, which end at `end`."""
    for number, text in enumerate(texts, start=before + 1):
        end += len(text)
        if text.strip():
            yield BulkLine(number, text, end)


@contextmanager
def _open(file: str) -> Iterator[IO[bytes]]:
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - only an error of opening it is the caller's
    except OSError as error:
        raise click.UsageError(f"Cannot read {file}: {error.strerror or error}.") from error
    with stream:
        yield stream


@contextmanager
def _progress(what: str, file: str) -> Iterator[Progress]:
    progress = Progress(
        TextColumn(f"{what:<10}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[tasks]:,} tasks"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with progress:
        progress.add_task("", total=None if file == "-" else Path(file).stat().st_size, tasks=0)
        yield progress


def _print_outcome(call: Invocation, outcome: FileOutcome) -> int:
    if call.json:
        bad = [{"line": bad.number, "field": bad.field, "error": str(bad)} for bad in outcome.bad]
        call.print_json(
            {"submitted": outcome.submitted, "already_there": outcome.existing, "ids": outcome.ids, "wrong_lines": bad}
        )
    else:
        _show(call, outcome)
    return Exit.USAGE if outcome.bad else Exit.CLEAN


def _show(call: Invocation, outcome: FileOutcome) -> None:
    call.console.print(Text(f"{plural(outcome.submitted)} submitted", style="green"), end="")
    call.console.print(f", {outcome.existing:,} already submitted" if outcome.existing else "", end="")
    call.console.print(f", {plural(len(outcome.bad), 'invalid line')} skipped" if outcome.bad else "")
    for bad in outcome.bad[:_MAX_SHOWN]:
        print_error(str(bad))
    if len(outcome.bad) > _MAX_SHOWN:
        click.echo(f"... and {len(outcome.bad) - _MAX_SHOWN:,} more", err=True)
