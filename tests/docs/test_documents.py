"""Every code block in README and CONTRIBUTING is run, as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(python|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[tuple[str, str]]:
    found = BLOCK.findall((ROOT / name).read_text())
    return [(kind, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)) for indent, kind, code in found]


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = f"{cwd}{os.pathsep}{ROOT / 'src'}"  # the documented version, even if another one is installed
    environment = os.environ | {"PATH": path, "PYTHONPATH": modules, "QO_URL": "sqlite:///qo.db"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text('{"type": "resize", "payload": {"path": "/tmp/dog.png"}}\n' * 3)
    return tmp_path


def test_the_readme_is_true(desk: Path) -> None:
    ran = 0
    for kind, code in blocks("README.md"):
        if kind == "python":
            name = code.splitlines()[0].removeprefix("# ")
            script = desk / (name if name.endswith(".py") else "snippet.py")
            script.write_text(code)
            ended = run([sys.executable, str(script)], desk)
            assert ended.returncode == 0, f"{code}\n{ended.stderr}"
            ran += 1
            continue
        for line in code.splitlines():
            if line.startswith("$ "):
                ended = run(["bash", "-c", line.removeprefix("$ ")], desk)
                assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
                ran += 1
    assert ran >= 12


def test_the_hooks_are_true(desk: Path) -> None:
    program, sentry = [code for kind, code in blocks("docs/hooks.md") if kind == "python"]
    (desk / "tasks.py").write_text(program)
    (desk / "sentry.py").write_text(sentry)
    (console,) = [code for kind, code in blocks("docs/hooks.md") if kind == "console"]
    for line in [*console.splitlines(), "$ python sentry.py"]:
        ended = run(["bash", "-c", line.removeprefix("$ ")], desk)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
        if "worker" in line:
            printed = sorted(ended.stdout.splitlines())
            assert printed == ["broken failed after 1 attempt: ValueError: broken", "double took 0.0 s", "pool closed"]


def test_the_page_about_workflows_is_true(desk: Path) -> None:
    programs = [code for kind, code in blocks("docs/workflows.md") if kind == "python"]
    names = [code.splitlines()[0].removeprefix("# ") for code in programs]
    for name, code in zip(names, programs, strict=True):
        (desk / name).write_text(code)
    (console,) = [code for kind, code in blocks("docs/workflows.md") if kind == "console"]
    lines = [line.removeprefix("$ ") for line in console.splitlines()]
    for line in [*lines, "python chains.py", "qo worker flows:app --drain", "python crawl.py",
                 "qo worker crawl:app --drain", f"qo workflow list --json | {sys.executable} check.py"]:  # fmt: skip
        (desk / "check.py").write_text(
            "import json, sys\nfound = json.load(sys.stdin)['workflows']\n"
            "assert sorted((each['name'], each['status'], each['total']) for each in found) == [\n"
            "    ('chain', 'completed', 2), ('crawl', 'completed', 7), ('group', 'completed', 101),\n"
            "    ('import', 'completed', 11)], found\n"
        )
        ended = run(["bash", "-c", line], desk)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"


def test_the_page_about_operations_is_true(desk: Path) -> None:
    for kind, code in blocks("docs/operations.md"):
        if kind == "python":
            (desk / "snippet.py").write_text(code)
            lines = [f"{sys.executable} snippet.py"]
        else:
            lines = [line.removeprefix("$ ") for line in code.splitlines()]
        for line in lines:
            ended = run(["bash", "-c", line], desk)
            assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"


def test_the_log_is_as_documented(desk: Path) -> None:
    (program,) = [code for kind, code in blocks("docs/logging.md") if kind == "python"]
    (desk / "tasks.py").write_text(program)
    (console,) = [code for kind, code in blocks("docs/logging.md") if kind == "console"]
    ended = [run(["bash", "-c", line.removeprefix("$ ")], desk) for line in console.splitlines()]
    assert [each.returncode for each in ended] == [0] * 4, ended
    task_id = (desk / "id.txt").read_text().strip()
    assert f" info    send {task_id}: sending to ann@example.com\n" in ended[1].stderr
    assert ended[2].stdout.startswith("attempt 1, completed\n")
    assert '"attempt": 1' in ended[3].stdout and "info shop: sending to ann@example.com" in ended[3].stdout


def test_the_storages_are_true(desk: Path) -> None:
    snippets = [code for kind, code in blocks("docs/storage.md") if kind == "python"]
    assert len(snippets) == 3
    for code in snippets:
        (desk / "snippet.py").write_text(code)
        ended = run([sys.executable, "snippet.py"], desk)
        assert ended.returncode == 0, f"{code}\n{ended.stderr}"


@pytest.mark.parametrize("page", ["uniqueness"])
def test_the_examples_of_a_page_are_true(desk: Path, page: str) -> None:
    code = "\n".join(code for kind, code in blocks(f"docs/{page}.md") if kind == "python")
    (desk / "page.py").write_text(code)
    done = run([sys.executable, "page.py"], desk)
    assert done.returncode == 0, done.stderr


def test_the_page_of_progress_is_true(desk: Path) -> None:
    """The blocks are files, named in their first lines; then the commands run on the store of the tasks."""
    for kind, code in blocks("docs/progress.md"):
        if kind == "python":
            name = code.splitlines()[0].removeprefix("# ")
            (desk / name).write_text(code)
            lines = [f"{sys.executable} {name}"]
        else:
            lines = [line.removeprefix("$ ") for line in code.splitlines()]
        for line in lines:
            ended = run(["bash", "-c", line], desk)
            assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"


def test_the_encryption_page_is_true(desk: Path) -> None:
    ((kind, code),) = [block for block in blocks("docs/encryption.md") if block[0] == "python"]
    (desk / "encrypted.py").write_text(code)
    ended = run([sys.executable, "encrypted.py"], desk)
    assert (kind, ended.returncode) == ("python", 0), ended.stderr


def test_the_tests_of_the_testing_page_pass(desk: Path) -> None:
    """Each block names its file in its first line."""
    page = (ROOT / "docs/testing.md").read_text()
    code = re.findall(r"^```(?:python|ini)\n(# (\S+)\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for _, name in code] == [
        "tasks.py",
        "test_block.py",
        "test_schedules.py",
        "pytest.ini",
        "test_fixture.py",
    ]
    for text, name in code:
        (desk / name).write_text(text)
    ended = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], desk)
    assert ended.returncode == 0 and "5 passed" in ended.stdout, ended.stdout

    (desk / "pytest.ini").write_text("[pytest]\nqo_app = tasks:nothing\n")
    ended = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fixture.py"], desk)
    assert "qo_app = tasks:nothing: module 'tasks' has no attribute 'nothing'" in ended.stdout, ended.stdout


def test_the_page_of_schedules_is_true(desk: Path) -> None:
    ran = 0
    for kind, code in blocks("docs/schedules.md"):
        if kind == "python":
            name = code.splitlines()[0].removeprefix("# ")
            (desk / (name if name.endswith(".py") else "snippet.py")).write_text(code)
            ended = run([sys.executable, name if name.endswith(".py") else "snippet.py"], desk)
            assert ended.returncode == 0, f"{code}\n{ended.stderr}"
            ran += 1
            continue
        for line in code.splitlines():
            ended = run(["bash", "-c", line.removeprefix("$ ")], desk)
            assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
            ran += 1
    assert ran == 9


def test_the_engine_in_five_steps_is_an_engine(desk: Path) -> None:
    (code,) = [code for kind, code in blocks("CONTRIBUTING.md") if kind == "python"]
    (desk / "test_yours.py").write_text(code)
    (desk / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    ended = run([sys.executable, "-m", "pytest", "-q", "test_yours.py", "-p", "no:cacheprovider"], desk)
    assert ended.returncode == 0, ended.stdout


def test_documents_link_only_to_what_exists() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    assert len(documents) > 8
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_nothing_refers_to_documents_that_are_not_here() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    text = {
        name: (ROOT / name).read_text(errors="replace") for name in tracked if name.endswith((".py", ".md", ".yml"))
    }
    assert [name for name, each in text.items() if re.search(r"\bspecs/[a-z]", each)] == []


def test_decisions_are_numbered_one_by_one() -> None:
    documents = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(document.name[:4]) for document in documents] == list(range(1, len(documents) + 1))
    for number, document in enumerate(documents, 1):
        assert document.read_text().startswith(f"# {number}. "), document.name
