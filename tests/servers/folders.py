"""Folders of servers. A run that is killed leaves its folders behind, and those in memory take up space there."""

import shutil
import tempfile
from pathlib import Path

from qo.clock import system_clock

_OLD = 86_400.0  # seconds, longer than any run


def server_folder(server: str) -> Path:
    """A new folder, which the caller removes. Removes those of runs that were killed more than a day ago."""
    prefix = f"qo-{server}-"
    for path in Path(tempfile.gettempdir()).glob(prefix + "?" * 8):  # as mkdtemp names them
        if _is_old(path):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix))


def _is_old(path: Path) -> bool:
    try:
        return system_clock() - path.stat().st_mtime > _OLD
    except OSError:  # another process has removed it
        return False
