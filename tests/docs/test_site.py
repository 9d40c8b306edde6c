"""The configuration of the documentation site. `make docs` builds it, which takes too long for a test."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

import qo

ROOT = Path(__file__).parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
HOOKS = ast.parse((ROOT / "docs" / "site" / "pages.py").read_text())  # its imports are not installed here


def constant(name: str) -> Any:
    for node in HOOKS.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return ast.literal_eval(node.value)
    raise LookupError(name)


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages(each)]


def test_the_site_lists_every_page_once() -> None:
    listed = pages(SITE["nav"])
    documents = {path.name for path in (ROOT / "docs").glob("*.md")}
    generated = {page for page in constant("DOCUMENTS").values() if page.endswith(".md")}
    assert sorted(listed) == sorted((documents | generated) - {"bench.md"})
    assert all((ROOT / document).exists() for document in constant("DOCUMENTS"))


def test_the_python_api_describes_every_public_name() -> None:
    paths = [path.removeprefix("!") for _, _, objects in constant("REFERENCE").values() for path in objects]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path
    described = {path.removeprefix("qo.") for path in paths} | {"batch", "tq", "__version__"}
    in_errors = {name for name in qo.__all__ if getattr(getattr(qo, name), "__module__", "") == "qo.errors"}
    assert [name for name in qo.__all__ if name not in described | in_errors] == []


def test_the_site_loads_nothing_from_other_hosts() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    assets = [*SITE["extra"]["polyfills"], *SITE["extra_css"]]
    assert all((ROOT / "docs" / asset).exists() for asset in assets)
    # The plugin adds a script of another host unless it finds one of this name.
    assert "offline" in SITE["plugins"] and any("iframe-worker" in asset for asset in SITE["extra"]["polyfills"])
    for asset in assets:
        assert not re.search(r"https?:|@import", (ROOT / "docs" / asset).read_text())
