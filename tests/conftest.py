"""Servers that several files need. Tests that share one run in one process, so that it is started once.

A fixture of the whole session that files import for themselves would start a server for each file.
"""

import faulthandler
import gc
import logging
import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from tests.servers.oidc import oidc_provider
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server
from tests.servers.seaweed import seaweed

__all__ = ["oidc_provider", "postgres", "redis_server", "seaweed"]

HERE = Path(__file__).parent
# By the first pattern that fits the path. They start in this order, the longest first. Two processes with browsers are
# ready before one process with all pages would be.
GROUPS = {
    "zero server pages": r"dashboard/test_zero_server_(actions|lost_answers|page|hostile)",
    "zero server": r"dashboard/test_(zero_server|bucket_roles|graph_layout)",
    "dashboard views": r"dashboard/test_(states|injections|tokens)",
    "dashboard": r"dashboard/test_(?!login)",
    "postgres": r"engines/test_(postgres|redis_archive)|cli/test_(migrate|frozen_store)|torture/test_clock",
    "buckets": r"buckets/|engines/test_.*seaweed",
    "redis": r"engines/test_redis|torture/test_partition",
    "kills": r"engines/test_layouts_processes",
    "login": r"dashboard/test_login|web/test_oidc",
}
SERVERS = {"postgres": "postgres", "redis_server": "redis", "redis": "redis"}  # fixture or parameter: group
# Before all others, so that none of them runs alone at the end.
LONG = (
    r"docs/|examples/|torture/|typing/|cli/test_(worker|supervisor|handlers_enqueue|audit)|worker/test_(poison|pauses)"
    r"|engines/test_(object_per_task_costs|log_simulation|layouts_(lost_answers|races)|.*_(restart|processes))"
)
GOODBYE = 60.0  # seconds

# On a busy machine any example may be late. Time limits of whole tests are set elsewhere.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_unconfigure(config: pytest.Config) -> None:
    """A process that cannot end says where it hangs. Processes of xdist wait here for those that still run tests."""
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(GOODBYE, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting creates a million objects that live until the end. No garbage collection needs to look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*GROUPS, "long", None]
    places = {id(item): order.index(_group(item)) for item in items}
    for item in items:
        if order[places[id(item)]] in GROUPS:
            item.add_marker(pytest.mark.xdist_group(order[places[id(item)]]))
    items.sort(key=lambda item: places[id(item)])


def _group(item: pytest.Item) -> str | None:
    found = _group_of_file(item.path)
    if found not in GROUPS:
        names = [*getattr(item, "fixturenames", ()), *re.findall(r"[a-z_]+", item.name.partition("[")[2])]
        found = next((SERVERS[name] for name in names if name in SERVERS), found)
    return found


@cache
def _group_of_file(file: Path) -> str | None:
    path = file.relative_to(HERE).as_posix()
    found = next((name for name, pattern in GROUPS.items() if re.match(pattern, path)), None)
    return found or ("long" if re.match(LONG, path) else None)


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
