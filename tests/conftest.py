"""Servers that several files need. Tests that share one run in one process, so that it is started once.

A fixture of the whole session that files import for themselves would start a server for each file.
"""

import faulthandler
import logging
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.servers.oidc import oidc_provider
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server
from tests.servers.seaweed import seaweed

__all__ = ["oidc_provider", "postgres", "redis_server", "seaweed"]

HERE = Path(__file__).parent
GROUPS = {  # by the first pattern that fits
    "zero server": r"dashboard/test_zero_server",
    "dashboard": r"dashboard/|web/test_oidc",
    "postgres": r"engines/test_(postgres|redis_archive)|cli/test_(migrate|frozen_store)|torture/test_clock",
    "redis": r"engines/test_redis|torture/test_partition",
    "kills": r"engines/test_layouts_processes",
    "buckets": r"buckets/|engines/test_.*seaweed",
}
GOODBYE = 60.0  # seconds


def pytest_unconfigure() -> None:
    """A process that cannot end says where it hangs."""
    faulthandler.dump_traceback_later(GOODBYE, exit=True)


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(HERE).as_posix()
        group = next((name for name, pattern in GROUPS.items() if re.match(pattern, path)), None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Undo what a command that a test called in this process has done to the log of the process."""
    try:
        return (yield)
    finally:
        log = logging.getLogger("qo")
        if log.handlers or log.level or not log.propagate:
            log.handlers.clear()
            log.setLevel(logging.NOTSET)
            log.propagate = True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Each process would start every server if groups were not heeded, as with some versions of pytest and xdist."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError("pytest-xdist does not see its groups: it does not fit this version of pytest")
