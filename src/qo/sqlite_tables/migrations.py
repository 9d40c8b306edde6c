"""Creates the tables or migrates them to the current schema. Any number of processes may try concurrently."""

import re
from collections.abc import Container
from importlib.resources import files

import apsw

from qo.errors import StorageError
from qo.formats import Format, check_format, format_of
from qo.sqlite_tables.header import ADDITIVE, APPLICATION_ID, FILE_VERSION, VERSION

_INDEX = re.compile(r"^CREATE INDEX (\w+) ([^;]+);", re.MULTILINE)


def check_version(db: apsw.Connection, place: object, known: int = FILE_VERSION) -> int:
    """The version of the schema. Raises NewerFormat if a newer qo has excluded this one."""
    version: int = db.execute("PRAGMA user_version").get
    if version > known:
        check_format(place, _recorded(db, version), known)
    return version


def _recorded(db: apsw.Connection, version: int) -> Format:
    try:
        row = db.execute("SELECT since, qo FROM formats WHERE number = ?", (version,)).fetchone()
    except apsw.SQLError:  # no such table
        row = None
    since, qo = row or (0, "")
    return Format(format=version, since=since, qo=qo)


def add_missing_indexes(db: apsw.Connection, version: int) -> None:
    """Create the missing indexes of additive steps.

    An older build that does not know a step adds its columns to a replica of a log, but not its indexes.
    """
    for step in sorted(number for number in ADDITIVE if number <= version):
        text = files("qo.sqlite_tables").joinpath("schema", f"{step:04}.sql").read_text("utf-8")
        for name, rest in _INDEX.findall(text):
            db.execute(f"CREATE INDEX IF NOT EXISTS {name} {rest}")


def migrate(db: apsw.Connection, place: object, target: int = VERSION, *, additive: Container[int] = ADDITIVE) -> None:
    """Create or update the tables, up to a version. Those of a newer one are not changed.

    `additive`: the steps that earlier builds may ignore in this kind of store.
    """
    if check_version(db, place) >= target:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version, application = check_version(db, place), db.execute("PRAGMA application_id").get
        if version >= target:  # another process has migrated it
            return
        if application != APPLICATION_ID and db.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StorageError(f"{place} is a SQLite database of another application; name another file")
        for step in range(version + 1, target + 1):
            db.execute(files("qo.sqlite_tables").joinpath("schema", f"{step:04}.sql").read_text("utf-8"))
        found = format_of(target, additive=additive)
        db.execute("INSERT INTO formats (number, since, qo) VALUES (?, ?, ?)", (found.format, found.since, found.qo))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {target}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
