"""A wrong argument is an error to mypy, where it is written; a right one is none."""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = re.compile(r"  # error: \[([a-z, -]+)\]$")
REPORT = re.compile(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$")


def marked(path: Path) -> set[tuple[str, int, str]]:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = [(number, mark[1].split(", ")) for number, line in lines if (mark := MARK.search(line))]
    return {(path.name, number, code) for number, codes in found for code in codes}


def test_mypy_finds_exactly_the_mistakes(tmp_path: Path) -> None:
    right, wrong = HERE / "right_app.py", HERE / "wrong_app.py"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT / 'src'}:{ROOT}\n", encoding="utf-8")
    options = ["--sqlite-cache", "--explicit-package-bases", "--no-error-summary", "--no-color-output", "--no-pretty"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            *options,
            f"--config-file={tmp_path}/mypy.ini",
            f"--cache-dir={tmp_path}",
            right,
            wrong,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    reported = {
        (Path(found[1]).name, int(found[2]), found[3])
        for line in done.stdout.splitlines()
        if (found := REPORT.match(line))
    }
    assert done.stderr == ""
    assert reported == marked(wrong), done.stdout
    assert len(marked(wrong)) >= 25
    assert marked(right) == set()
