"""Text of tasks and workers in a terminal: nothing in it is obeyed, and JSON says the same as before."""

import asyncio
import io
import json
import logging
import re
import sys
from typing import Any

import msgspec
import pytest
from rich.table import Table

import qo
from qo.cli.output import as_json
from qo.cli.rich_output import console
from qo.clock import system_clock
from qo.log_output import JsonFormatter, TextFormatter
from qo.model import ANY
from qo.notes import WORKERS, WorkerNote

HOSTILE = "\x1b]0;x\x07\x9b31m\x7f\x85\u202e\u2066\u061c\u2028\x00\ud800ü"
STORED = HOSTILE.replace("\x00", "").replace("\ud800", "")  # what a store can hold
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")


@pytest.fixture
def stored(call: Any) -> str:
    async def fill() -> str:
        async with qo.connect(call.url) as client:
            submitted = await client.enqueue("t", {STORED: STORED}, max_retries=0)
            (task,) = await client.dequeue()
            await client.nack(task, STORED)
            now = system_clock()
            note = WorkerNote(
                worker_id="w", started_at=now, last_heartbeat=now, capacity=1, host=STORED, version=STORED,
                types=(STORED,), queues=(STORED,), capabilities=(STORED,),
            )  # fmt: skip
            await client.engine.write_note(f"{WORKERS}w", msgspec.json.encode(note), expected=ANY)
            return submitted.id

    return asyncio.run(fill())


def test_no_command_prints_what_a_terminal_obeys(call: Any, stored: str) -> None:
    for words in (["list"], ["status", stored], ["history", stored], ["workers"], ["stats"], ["top", "--once"]):
        for more in ([], ["--json"]):
            if words[0] == "top" and more:
                continue
            answer = call(*words, *more)
            assert not HARMFUL.search(answer.stdout + answer.stderr), words
    shown = json.loads(call("status", stored, "--json").stdout)
    assert (shown["error"], shown["payload"]) == (STORED, {STORED: STORED})
    assert "\\x9b31m" in call("status", stored).stdout


def test_json_keeps_its_meaning() -> None:
    text = as_json({HOSTILE: [HOSTILE]})
    assert not HARMFUL.search(text) and "ü" in text
    assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_what_a_caller_forgot_to_clean_is_escaped_when_it_is_printed() -> None:
    stream = io.StringIO()
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console(stream).print(HOSTILE, table)
    assert not HARMFUL.search(stream.getvalue()) and "\\x1b]0;x" in stream.getvalue()


@pytest.mark.parametrize("formatter", [TextFormatter(colour=False), JsonFormatter()])
def test_a_log_line_is_escaped_its_trace_too(formatter: logging.Formatter) -> None:
    try:
        int(HOSTILE)
    except ValueError:
        record = logging.makeLogRecord({"msg": "%s", "args": (HOSTILE,), "exc_info": sys.exc_info(), "extra": HOSTILE})
    line = formatter.format(record)
    assert not HARMFUL.search(line)
    assert "\\x9b31m" in line or "\\u009b31m" in line


def test_a_log_line_shows_its_instant_in_milliseconds() -> None:
    formatter = JsonFormatter()
    instants = [1_700_000_000.0, 1_700_000_000.25, 1_700_000_001.9996, 1_700_000_000.5]
    shown = [json.loads(formatter.format(logging.makeLogRecord({"created": each})))["at"] for each in instants]
    seconds = ["20.000", "20.250", "21.999", "20.500"]
    assert shown == [f"2023-11-14T22:13:{second}Z" for second in seconds]
