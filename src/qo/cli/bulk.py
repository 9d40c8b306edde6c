"""Many tasks from a file of JSON lines: checked first, sent in batches, with a progress bar for people."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from qo.cli.context import Invocation
from qo.cli.exit_codes import Exit
from qo.cli.output import plural, print_error
from qo.cli.payload import task_of_line
from qo.cli.rich_output import console
from qo.client import Client, Settings
from qo.errors import InvalidTask, QoError
from qo.model import NewTask

BATCH = 1000
MOST_SHOWN = 20  # wrong lines told one by one; a file of another kind is wrong in every line


class BadLine(InvalidTask):
    def __init__(self, number: int, error: InvalidTask) -> None:
        super().__init__(error.field, str(error).removeprefix(f"{error.field}: "))
        self.args = (f"line {number}: {error}",)
        self.number = number


class Tally:
    """What became of the lines."""

    def __init__(self, *, keep_ids: bool) -> None:
        self.submitted = self.already_there = 0
        self.ids: list[str] | None = [] if keep_ids else None
        self.bad: list[BadLine] = []


class BulkLine(NamedTuple):
    number: int
    text: bytes
    end: int  # bytes read when this line ended


def submit(call: Invocation, file: str, *, carry_on: bool) -> int:
    tally = Tally(keep_ids=call.json)

    if file != "-":
        check(file, call.settings, tally, carry_on=carry_on)

    async def work(client: Client) -> None:
        with _open(file) as stream, _progress("submitting", file) as progress:
            async for batch, end in _batches(stream, client.settings, tally, carry_on=carry_on, told=file != "-"):
                await _send(client, batch, tally)
                progress.update(progress.task_ids[0], completed=end, tasks=tally.submitted + tally.already_there)

    try:
        call.ask(work, create=True)
    except QoError as error:
        if tally.submitted + tally.already_there:
            error.args = (f"{error} (before it, {plural(tally.submitted + tally.already_there)} went in)",)
        raise
    return _answer(call, tally)


def check(file: str, settings: Settings, tally: Tally, *, carry_on: bool) -> None:
    """Read the whole file before anything is submitted."""
    with _open(file) as stream, _progress("checking", file) as progress:
        for line in _lines(stream):
            try:
                task_of_line(line.text, settings)
            except InvalidTask as error:
                tally.bad.append(BadLine(line.number, error))
            if line.number % BATCH == 0:
                progress.update(progress.task_ids[0], completed=line.end, tasks=line.number)
    if tally.bad and not carry_on:
        first = tally.bad[0]
        if len(tally.bad) > 1:
            others = ", ".join(str(bad.number) for bad in tally.bad[1:MOST_SHOWN])
            first.args = (f"{first} (also wrong: line {others}{' and more' if len(tally.bad) > MOST_SHOWN else ''})",)
        first.args = (f"{first}; nothing was submitted",)
        raise first


async def _batches(
    stream: IO[bytes], settings: Settings, tally: Tally, *, carry_on: bool, told: bool
) -> AsyncIterator[tuple[list[NewTask], int]]:
    batch: list[NewTask] = []
    end = 0
    for line in _lines(stream):
        end = line.end
        try:
            batch.append(task_of_line(line.text, settings))
        except InvalidTask as error:
            if not carry_on:
                if batch:
                    yield batch, end  # what stood before the wrong line was right
                raise BadLine(line.number, error) from error
            if not told:
                tally.bad.append(BadLine(line.number, error))
        if len(batch) == BATCH:
            yield batch, end
            batch = []
    if batch:
        yield batch, end


async def _send(client: Client, batch: list[NewTask], tally: Tally) -> None:
    for submitted in await client.submit_many(batch):
        tally.submitted += submitted.new
        tally.already_there += not submitted.new
        if tally.ids is not None:
            tally.ids.append(submitted.id)


def _lines(stream: IO[bytes]) -> Iterator[BulkLine]:
    end = 0
    for number, text in enumerate(stream, start=1):
        end += len(text)
        if text.strip():
            yield BulkLine(number, text, end)


@contextmanager
def _open(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - only opening it may fail for the caller's fault
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


def _answer(call: Invocation, tally: Tally) -> int:
    if call.json:
        bad = [{"line": bad.number, "field": bad.field, "error": str(bad)} for bad in tally.bad]
        call.answer(
            {"submitted": tally.submitted, "already_there": tally.already_there, "ids": tally.ids, "wrong_lines": bad}
        )
    else:
        _show(call, tally)
    return Exit.USAGE if tally.bad else Exit.CLEAN


def _show(call: Invocation, tally: Tally) -> None:
    call.out.print(Text(f"{plural(tally.submitted)} submitted", style="green"), end="")
    call.out.print(f", {tally.already_there:,} already there" if tally.already_there else "", end="")
    call.out.print(f", {plural(len(tally.bad), 'wrong line')} left out" if tally.bad else "")
    for bad in tally.bad[:MOST_SHOWN]:
        print_error(str(bad))
    if len(tally.bad) > MOST_SHOWN:
        click.echo(f"... and {len(tally.bad) - MOST_SHOWN:,} more", err=True)
