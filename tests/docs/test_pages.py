"""The commands and calls in the text of documents exist."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import qo
from qo.client.schedules import ScheduleOptions
from qo.model import Unique
from qo.tasks import HandlerOptions
from tests.docs.commands import check_command, command_lines, words_of
from tests.docs.test_documents import ROOT, desk, run

__all__ = ["desk"]

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_have_only_options_that_exist(path: Path) -> None:
    for line in command_lines(path.read_text()):
        check_command(words_of(line))


def test_the_check_of_commands_finds_mistakes() -> None:
    lines = list(command_lines("`qo worker x --grace 1s` and\n```sh\nqo submit --tpye x  # no\nqo gone\n```\n"))
    assert lines == ["submit --tpye x  # no", "gone", "worker x --grace 1s"]
    check_command(words_of(lines[2]))
    for line in lines[:2]:
        with pytest.raises(AssertionError):
            check_command(words_of(line))


def headings(document: Path) -> set[str]:
    """The anchors of a document, as GitHub and the site make them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_lead_to_headings_that_exist() -> None:
    found = 0
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
            assert anchor in headings(document.parent / target if target else document), f"{document.name}: #{anchor}"
            found += 1
    assert found > 20


# --- monitoring


def test_the_traces_are_as_documented(desk: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    ((program, name),) = re.findall(r"^```python\n(# (\S+)\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (desk / name).write_text(program)
    (console,) = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ended = [run(["bash", "-c", line.removeprefix("$ ")], desk) for line in console.splitlines()]
    assert [each.returncode for each in ended] == [0, 0], ended
    submitted, attempted = (re.findall(r'"name": "(.+)"|"trace_id": "(.+)"', each.stdout) for each in ended)
    assert submitted[0][0] == "enqueue greet" and attempted[0][0] == "run greet"
    assert submitted[1][1] == attempted[1][1]


def test_the_metrics_on_the_page_about_monitoring_exist() -> None:
    page, listed = ((ROOT / "docs" / name).read_text() for name in ("monitoring.md", "http.md"))
    (scrape,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [job["job_name"] for job in yaml.safe_load(scrape)["scrape_configs"]] == ["qo", "qo-workers"]
    metrics = re.findall(r"^\| `(\w+)(?:{(\w+)=\S+)?` \| [^`]", page, re.MULTILINE)
    assert len(metrics) == 6
    for metric, label in metrics:
        (row,) = [line for line in listed.splitlines() if line.startswith("|") and f"`{metric}`" in line]
        assert f"`{label}`" in row or not label


# --- coming from another queue


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


app = qo.App("memory://")
SCHEDULE = {"name", "kwargs", "task", *ScheduleOptions.__annotations__}
KEYWORDS = {
    "task": {"name", *HandlerOptions.__struct_fields__},
    "using": parameters(qo.TaskFunction.using),
    "schedule": SCHEDULE,
    "add": SCHEDULE,
    "RetryPolicy": set(qo.RetryPolicy.__struct_fields__),
    "Unique": set(Unique.__struct_fields__),
    "Limit": set(qo.Limit.__struct_fields__),
    "group": parameters(qo.group),
    "Retry": parameters(qo.Retry),
    "result": parameters(qo.SyncTaskHandle.result),
    "aresult": parameters(qo.SyncTaskHandle.aresult),
}
OWNERS = {"app": app, "handle": qo.SyncTaskHandle, "qo": qo}


def snippets() -> list[str]:
    """The Python code in the column "now write" of all tables."""
    page = (ROOT / "docs" / "coming-from.md").read_text()
    cells = [row.rstrip("|").rsplit(" | ", 1)[1] for row in page.splitlines() if row.startswith("| `") or " | " in row]
    code = [each for cell in cells for each in re.findall(r"`([^`]+)`", cell)]
    return [each for each in code if not each.startswith(("qo ", "async def", "t."))]


def check_snippet(snippet: str) -> None:
    code = f"{snippet}\ndef f(): ..." if snippet.startswith("@") else snippet
    tree = ast.parse(code.replace("await ", ""))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OWNERS:
            assert hasattr(OWNERS[node.value.id], node.attr), snippet
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg for keyword in node.keywords}
            assert given <= KEYWORDS.get(node.func.attr, set()), snippet


def test_what_to_write_now_exists() -> None:
    assert len(snippets()) > 80
    for snippet in snippets():
        check_snippet(snippet)
    for wrong in ("app.missing()", "@app.task(retries=3)", "add.using(countdown=60).enqueue(1)", "qo.Chain(a, b)"):
        with pytest.raises(AssertionError):
            check_snippet(wrong)


# --- FastAPI

OTHERS = """
from fastapi.testclient import TestClient
from gateway import api as gateway
from with_dashboard import api as dashboard
import qo

def test_the_gateway_submits_by_name() -> None:
    with TestClient(gateway) as http:
        task_id = http.post("/orders/7/receipt").json()["task"]
    with qo.sync.connect("sqlite:///qo.db") as client:
        assert client.get(task_id).type == "send_receipt"

def test_the_dashboard_is_mounted() -> None:
    with TestClient(dashboard, base_url="http://127.0.0.1") as http:
        assert "<title>" in http.get("/queue/").text
        assert http.get("/queue/readyz").json()["ok"]
"""


def test_the_page_about_fastapi_is_true(desk: Path) -> None:
    page = (ROOT / "docs" / "fastapi.md").read_text()
    code = re.findall(r"^```python\n(# (\S+)\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for _, name in code] == ["shop.py", "gateway.py", "test_shop.py", "with_dashboard.py"]
    for text, name in [*code, (OTHERS, "test_others.py")]:
        (desk / name).write_text(text)
    ended = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], desk)
    assert ended.returncode == 0 and "5 passed" in ended.stdout, ended.stdout
