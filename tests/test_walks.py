"""The walks of ARCHITECTURE.md, compared with the files that one real task calls."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

from tests.servers.process import ROOT
from tests.test_names import walk


def files_called_by(operation: str, folder: Path) -> list[str]:
    program = [sys.executable, str(ROOT / "tests" / "called_files.py"), operation]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(program, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return cast("list[str]", json.loads(ended.stdout))


def test_enqueue_calls_the_files_of_its_walk_in_this_order(tmp_path: Path) -> None:
    files = walk("From `enqueue` to a SQLite row")
    assert [file for file in files_called_by("enqueue", tmp_path) if file in files] == files


def test_a_claim_and_its_settlement_call_the_files_of_their_walk(tmp_path: Path) -> None:
    called = files_called_by("claim", tmp_path)
    assert [file for file in walk("From a claim to its settlement") if file not in called] == []
