"""Small programs run as users run them: in a process of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def run_script(text: str, folder: Path, **variables: str) -> str:
    """Its output; whatever it says on stderr, at exit too, is a failure."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONFAULTHANDLER": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"exit {done.returncode}: {done.stderr}\n{done.stdout}"
    return done.stdout
