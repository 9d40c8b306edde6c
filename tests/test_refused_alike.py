"""The list of RELIABILITY.md, each line through all three doors: Python, the command line and HTTP say the same."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from qo.cli import main
from qo.client import Client
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidTask
from qo.model import Change, Guard, NewTask, Status
from qo.task_queue import TaskQueue
from qo.testing.samples import task_id
from tests.web.serving import Served, served


class Line(NamedTuple):
    text: str  # as it arrives from outside
    value: Any  # as Python has it; None if Python cannot have it
    says: str


def deep(size: int) -> Any:
    value: Any = 1
    for _ in range(size):
        value = [value]
    return value


LINES = {
    "NaN": Line("NaN", nan, "is not JSON"),
    "infinity": Line("Infinity", inf, "is not JSON"),
    "minus infinity": Line("-Infinity", -inf, "is not JSON"),
    "an integer above": Line(str(2**63), 2**63, "outside ±2^63"),
    "an integer below": Line(str(-(2**63) - 1), -(2**63) - 1, "outside ±2^63"),
    "a lone surrogate": Line('"\\ud800"', "\ud800", "lone surrogate"),
    "a key twice": Line('{"a": 1, "a": 2}', None, "appears twice"),
    "too deep": Line("[" * 65 + "1" + "]" * 65, deep(65), "deeper than 64"),
    "NUL": Line('"a\\u0000b"', "a\x00b", "NUL"),
    "too large": Line(json.dumps("x" * 262_145), "x" * 262_145, "the limit is 262,144"),
}
TYPES = ["-a", "/a", "a b", "../a", "é", "a" * 256, "a;", "<b>", "a%2fb", "a\\b"]
NAMES = ["-a", "a b", "a/b", "../a", "é", "a" * 65, "a;", "<b>"]


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served(MemoryEngine()) as made:
        yield made


async def by_command(url: str, *options: str, payload: str = "1") -> str:
    words = ["--url", url, "submit", "--input", "-", "--json", *options]
    result = await asyncio.to_thread(CliRunner().invoke, main, words, input=payload)  # it runs a loop of its own
    assert result.exit_code == 2, result.output
    return str(json.loads(result.stderr)["error"])


def by_http(api: Served, path: str, body: str) -> str:
    answer = api.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"])


@pytest.mark.parametrize("name", LINES)
async def test_a_payload_is_refused_alike(api: Served, tmp_path: Path, name: str) -> None:
    line = LINES[name]
    said = [await by_command(f"sqlite:///{tmp_path}/qo.db", "--type", "t", payload=line.text)]
    said.append(by_http(api, "/api/tasks", f'{{"type": "t", "payload": {line.text}}}'))
    said.append(by_http(api, "/api/v1/tasks", f'{{"task_type": "t", "parameters": {{"x": {line.text}}}}}'))
    if line.value is not None:
        with pytest.raises(InvalidTask) as caught:
            await Client(MemoryEngine()).enqueue("t", line.value)
        said.append(str(caught.value))
    assert all(line.says in each for each in said), said
    assert not api.client.get("/api/v1/tasks").json()["tasks"] and not (tmp_path / "qo.db").exists()


async def test_an_encoded_payload_too_deep_to_be_read_is_refused_on_every_way_in(api: Served, tmp_path: Path) -> None:
    """5,000 brackets: a decoder meets Python's recursion limit, so the depth is found without decoding."""
    text = "[" * 5_000 + "]" * 5_000
    new = NewTask(id=task_id(1), queue="default", type="t", payload=text.encode())
    client, port = Client(MemoryEngine()), open_engine(api.url)
    await port.open()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "submit": lambda: client.submit(new),
        "submit_many": lambda: client.submit_many([new]),
        "new_task": lambda: client.submit(client.new_task("t", text.encode())),
        "the port": lambda: port.add([new]),
        "a result through the port": lambda: port.apply(
            [Change(id=task_id(1), guard=Guard.HELD, to=Status.COMPLETED, lease_id="l", result=text.encode())]
        ),
    }
    for call in calls.values():
        with pytest.raises(InvalidTask, match="nested deeper than 64 levels"):
            await call()
    await port.close()
    said = [await by_command(f"sqlite:///{tmp_path}/qo.db", "--type", "t", payload=text)]
    said.append(by_http(api, "/api/tasks", f'{{"type": "t", "payload": {text}}}'))
    said.append(by_http(api, "/api/v1/tasks", f'{{"task_type": "t", "parameters": {{"x": {text}}}}}'))
    said.append(
        by_http(api, "/api/v1/tasks/bulk", f'{{"tasks": [{{"task_type": "t", "parameters": {{"x": {text}}}}}]}}')
    )
    assert all("nested deeper than 64 levels" in each for each in said), said
    tq = TaskQueue()
    tq.init(f"sqlite:///{tmp_path}/tq.db")
    try:
        with pytest.raises(InvalidTask, match="nested deeper than 64 levels"):
            tq.submit("t", text.encode(), max_attempts=None, run_after=None)
    finally:
        tq.stop()


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_refused_alike(api: Served, tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    with pytest.raises(InvalidTask) as caught:
        await Client(MemoryEngine()).enqueue("t", 1, queue=name)
    said = [str(caught.value), await by_command(url, "--type", "t", "--queue", name)]
    said.append(by_http(api, "/api/v1/tasks", json.dumps({"task_type": "t", "queue": name})))
    assert all("is not a name" in each for each in said), said


@pytest.mark.parametrize("name", TYPES)
async def test_a_type_is_refused_alike(api: Served, tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    with pytest.raises(InvalidTask) as caught:
        await Client(MemoryEngine()).enqueue(name, 1)
    said = [str(caught.value), await by_command(url, "--type", name)]
    said.append(by_http(api, "/api/tasks", json.dumps({"type": name, "payload": 1})))
    said.append(by_http(api, "/api/v1/tasks", json.dumps({"task_type": name})))
    assert all("is not a type" in each for each in said), said
