"""The rules for names: no class twice, modules are nouns, a short glossary, and walks through files that exist."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "qo"
MODULES = sorted(PACKAGE.rglob("*.py"))
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()

GERUNDS = {"tracing", "polling", "ranking", "testing"}  # terms of the field
VAGUE = {"utils", "common", "helpers", "manager", "base", "core"}
MAX_WORDS = 45


def walk(title: str) -> list[str]:
    section = ARCHITECTURE.split(f"### {title}")[1].split("\n#")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)


def test_no_class_name_exists_twice() -> None:
    homes = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(module.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_modules_are_nouns() -> None:
    names = {part for module in MODULES for part in module.relative_to(PACKAGE).with_suffix("").parts}
    assert {name for name in names if name.endswith("ing") and "_" not in name} <= GERUNDS
    assert names & VAGUE == set()


def test_the_glossary_is_short_and_sorted() -> None:
    section = ARCHITECTURE.split("## Glossary")[1].split("\n## ")[0]
    words = re.findall(r"^- \*\*([^*]+)\*\*", section, re.MULTILINE)
    assert 0 < len(words) <= MAX_WORDS
    assert words == sorted(words)


def test_the_walks_name_files_that_exist_and_stay_short() -> None:
    enqueue = walk("From `enqueue` to a SQLite row")
    claim = walk("From a claim to its settlement")
    assert 0 < len(enqueue) <= 14
    assert 0 < len(claim) <= 28
    assert [each for each in enqueue + claim if not (PACKAGE / each).exists()] == []
