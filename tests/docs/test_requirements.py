"""requirements/ holds what constraints.txt says, each package with hashes, and names no place to get it from."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
_PIN = re.compile(r"([a-z0-9-]+)==([^ ;\\]+)( ; [^\\]+)? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith(" ")]
    found = [_PIN.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_package_has_a_version_and_hashes_and_nothing_else_is_said(path: Path) -> None:
    assert pins(path)
    lines = path.read_text("utf-8").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(" "):
            assert _HASH.fullmatch(line), line
        assert line.endswith("\\") == following.startswith(" "), line


@pytest.mark.parametrize("name", ["web", "dev"])
def test_versions_are_those_of_the_constraints(name: str) -> None:
    """If not: make lock."""
    wanted = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").split())
    pinned = pins(ROOT / "requirements" / f"{name}.txt")
    assert {package: pinned[package] for package in pinned.keys() & wanted.keys()} == {
        package: wanted[package] for package in pinned.keys() & wanted.keys()
    }
    if name == "dev":
        assert wanted.keys() - pinned.keys() <= {"async-timeout"}  # of Pythons that qo does not run on


def test_the_packages_of_npm_have_hashes_too_and_no_addresses() -> None:
    text = (ROOT / "requirements" / "azurite" / "package-lock.json").read_text("utf-8")
    packages = json.loads(text)["packages"]
    wanted = json.loads((ROOT / "requirements" / "azurite" / "package.json").read_text("utf-8"))["dependencies"]
    assert packages.pop("")["dependencies"] == wanted == {"azurite": packages["node_modules/azurite"]["version"]}
    for name, package in packages.items():
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"]), name
    assert "://" not in text and "resolved" not in text
