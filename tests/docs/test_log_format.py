"""The examples of docs/log-format.md are true."""

import json
import re
from pathlib import Path

from qo.engines.replicated_log.frame import decode_frame
from tests.engines.log_reader import read_frame, read_patchset

PAGE = (Path(__file__).parents[2] / "docs" / "log-format.md").read_text()
KEY = "log/9a6337dc5929/00/records/0000000000000001"


def example() -> bytes:
    lines = re.findall(r"^\d{3}  ((?:[0-9a-f]{2} ?)+)$", PAGE, re.MULTILINE)
    return bytes.fromhex(" ".join(lines))


def test_both_readers_decode_the_example_of_a_record() -> None:
    header, body = decode_frame(KEY, example())
    frame = read_frame(KEY, example())
    assert frame.body == body and (frame.first, frame.last, frame.schema) == (1, 1, header.schema)
    assert f"{header.stored_bytes} bytes, and {header.raw_bytes} bytes after decompression" in PAGE


def test_the_example_of_a_record_contains_the_rows_that_the_page_shows() -> None:
    shown = re.search(r"They say:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    changes = [*read_patchset(read_frame(KEY, example()).body)]
    assert len(changes) == len(shown[1].splitlines())
    for change, line in zip(changes, shown[1].splitlines(), strict=True):
        values = ", ".join("NULL" if value is None else repr(value) for value in change.values)
        operation, table, row = line.split(maxsplit=2)
        assert (change.operation, change.table) == (operation, table)
        assert f"({values})".startswith(row.removesuffix("…)"))


def test_the_documents_are_json() -> None:
    found = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert [*map(len, map(json.loads, found))] == [11, 4, 5]
