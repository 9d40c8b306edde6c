"""Steps of the schema as records of a log, so that every replica changes its tables at the same position.

A build that knows the number of the step runs its own migration. An older one that may use the new tables adds the
columns and tables that the step lists, and preserves their content. A step contains names and values but no SQL,
because everyone who can write the bucket can write one.
"""

import re
from functools import cache

import apsw
import msgspec
from msgspec import Struct

from qo.formats import Format, check_format, format_of
from qo.sqlite_tables.header import LOG_ADDITIVE, VERSION
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.patchsets import LOCAL

_NAME = re.compile(r"[a-z_]{1,60}")
_TYPES = {"", "TEXT", "INTEGER", "REAL", "BLOB"}

StepDefault = str | int | float | None


class BadStep(Exception):
    """A step cannot be made on these tables."""


class AddedTable(Struct, frozen=True, kw_only=True):
    name: str
    columns: tuple[tuple[str, str], ...]  # name and type
    key: tuple[str, ...]  # the columns of the primary key, in order


class SchemaStep(Struct, frozen=True, kw_only=True):
    number: int  # the version of the tables after the step
    since: int  # builds that know this version may use the tables
    qo: str  # the version that made the step
    columns: tuple[tuple[str, str, str, StepDefault], ...] = ()  # table, name, type and default
    tables: tuple[AddedTable, ...] = ()


_decoder = msgspec.json.Decoder(SchemaStep)


def encode_step(step: SchemaStep) -> bytes:
    return msgspec.json.encode(step)


def next_step(version: int) -> SchemaStep | None:
    """The step from this version of the tables to the next one; None if this build knows no later version."""
    if version >= VERSION:
        return None
    number = version + 1
    found = format_of(number, additive=LOG_ADDITIVE)
    if found.since == number:  # no older build may use the tables, so none needs to know what was added
        return SchemaStep(number=number, since=found.since, qo=found.qo)
    before, after = _tables_of(version), _tables_of(number)
    columns = [
        (table, name, *column)
        for table, known in before.items()
        for name, column in after[table].items()
        if name not in known
    ]
    return SchemaStep(number=number, since=found.since, qo=found.qo, columns=tuple(columns), tables=_added(number))


def make_step(db: apsw.Connection, place: str, body: bytes) -> None:
    """Change the tables as the record describes. Raises BadStep, or NewerFormat; nothing is changed then."""
    try:
        step = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadStep(f"a step of the schema cannot be read: {error}") from error
    version: int = db.execute("PRAGMA user_version").get
    if step.number != version + 1:
        raise BadStep(f"a step to version {step.number} of the tables does not follow version {version}")
    check_format(place, Format(format=step.number, since=step.since, qo=step.qo), VERSION)
    if step.number <= VERSION:
        migrate(db, place, step.number, additive=LOG_ADDITIVE)
        return
    with db:
        for statement in _statements(step):
            try:
                db.execute(statement)
            except apsw.SQLError as error:
                raise BadStep(f"a step of the schema does not match the tables: {error}") from error
        db.execute("INSERT INTO formats (number, since, qo) VALUES (?, ?, ?)", (step.number, step.since, step.qo))
        db.execute(f"PRAGMA user_version = {step.number}")


def replicated_tables(db: apsw.Connection) -> frozenset[str]:
    """The tables of which records may change rows: also those that a newer build has added."""
    names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'")
    return frozenset(name for (name,) in names) - {*LOCAL}


def _statements(step: SchemaStep) -> list[str]:
    statements = []
    for table, name, kind, default in step.columns:
        statements.append(f"ALTER TABLE {_name(table)} ADD COLUMN {_column(name, kind)} DEFAULT {_literal(default)}")
    for added in step.tables:
        columns = ", ".join(_column(name, kind) for name, kind in added.columns)
        key = ", ".join(map(_name, added.key))
        statements.append(f"CREATE TABLE {_name(added.name)} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID")
    return statements


def _column(name: str, kind: str) -> str:
    if kind not in _TYPES:
        raise BadStep(f"a step of the schema has a column of type {kind!r:.40}")
    return f"{_name(name)} {kind}"


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadStep(f"a step of the schema has the name {name!r:.80}")
    return f'"{name}"'


def _literal(value: StepDefault) -> str:
    return apsw.format_sql_value(value)


# --- what a migration of this build adds

_Columns = dict[str, tuple[str, StepDefault]]  # type and default of each column


@cache  # making the tables takes milliseconds, and every new log needs them
def _tables_of(version: int) -> dict[str, _Columns]:
    db = apsw.Connection(":memory:")
    try:
        migrate(db, "memory", version)
        return {table: _columns(db, table) for table in sorted(replicated_tables(db))}
    finally:
        db.close()


def _columns(db: apsw.Connection, table: str) -> _Columns:
    columns: _Columns = {}
    described = db.execute("SELECT name, type, dflt_value FROM pragma_table_info(?)", (table,)).fetchall()
    for name, kind, default in described:
        value = None if default is None else db.execute(f"SELECT {default}").get  # SQL of this build
        columns[str(name)] = (str(kind), value)
    return columns


@cache
def _added(number: int) -> tuple[AddedTable, ...]:
    """The tables that the migration to this version adds."""
    db = apsw.Connection(":memory:")
    try:
        migrate(db, "memory", number)
        return tuple(
            AddedTable(
                name=table,
                columns=tuple((name, kind) for name, (kind, _) in _columns(db, table).items()),
                key=tuple(
                    name
                    for (name,) in db.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,))
                ),
            )
            for table in sorted(replicated_tables(db) - {*_tables_of(number - 1)})
        )
    finally:
        db.close()
