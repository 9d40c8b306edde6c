"""The tables of a replica: created for a new log, and checked in an image."""

from functools import cache
from importlib.resources import files

import apsw

from qo.errors import StorageError
from qo.formats import Format
from qo.sqlite_tables.header import APPLICATION_ID, LOG_ADDITIVE
from qo.sqlite_tables.migrations import check_version, migrate
from qo.version import __version__

# Of the tables before the first record, in a new log. Builds that know it may use the log: later additive steps are
# records. In a log whose meta object does not contain it, it is the oldest one.
FIRST_SCHEMA, OLDEST_SCHEMA = 9, 8


def first_schema() -> Format:
    """The schema of a new log, and the builds that may use it."""
    return Format(format=FIRST_SCHEMA, since=FIRST_SCHEMA, qo=__version__)


def create_tables(db: apsw.Connection, place: str, schema: int) -> None:
    """Create the empty tables of this schema."""
    migrate(db, place, schema, additive=LOG_ADDITIVE)
    db.execute(files("qo.engines.replicated_log").joinpath("replica_schema.sql").read_text("utf-8"))


def schema_of(db: apsw.Connection, place: str) -> tuple[int, int]:
    """The version of the tables, and the oldest version whose builds may use them."""
    version = check_version(db, place)
    since: int = db.execute("SELECT since FROM formats WHERE number = ?", (version,)).get or version
    return version, since


_SchemaEntry = tuple[str, str, str]  # type, name and table


def _entries(db: apsw.Connection) -> set[_SchemaEntry]:
    return set(db.execute("SELECT type, name, tbl_name FROM sqlite_schema"))


@cache
def _first_entries(schema: int) -> frozenset[_SchemaEntry]:
    db = apsw.Connection(":memory:")
    try:
        create_tables(db, "memory", schema)
        return frozenset(_entries(db))
    finally:
        db.close()


def check_tables(db: apsw.Connection, place: str) -> None:
    """Raise StorageError if an image does not contain the tables of a log, or anything that runs code."""
    found = _entries(db)
    code = sorted(name for kind, name, _ in found if kind not in {"table", "index"})
    code += [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE 'create%virtual%'")]
    missing = sorted(name for _, name, _ in _first_entries(min(FIRST_SCHEMA, OLDEST_SCHEMA)) - found)
    if code or missing or db.execute("PRAGMA application_id").get != APPLICATION_ID:
        problem = f"it has {', '.join(code)}" if code else f"it has no {', '.join(missing) or 'mark of qo'}"
        raise StorageError(f"an image of {place} does not contain the tables of a log: {problem}")
