"""The SQL statements of the engine by name, from the files in `sql/`.

Each statement is a separate transaction, and takes a batch as arrays, one per column: a task, its events and the
counts change together or not at all. `now` is null in production, where the server's clock applies; tests pass a time.
Every statement locks tasks in the order of their ids, so that concurrent batches cannot deadlock.
"""

from functools import cache
from importlib.resources import files

from qo.model import ADMIN_NOTES, AUDIT_NOTES

VERSION = 14  # of the tables: the number of the last file in `schema/`
ADDITIVE = frozenset({3, 4, 5, 6, 8, 9, 12, 14})  # files that only add what earlier builds may ignore and preserve

# Separate tables for notes of these prefixes, so that GRANTs can keep roles out of them.
NOTE_TABLES = {ADMIN_NOTES: "admin_notes", AUDIT_NOTES: "audit_notes"}

# The columns of a task, in the order that `task_of` in rows.py expects.
COLUMNS = (
    "t.id::text, t.lane, t.status, t.payload, t.result, t.error, t.priority, t.timeout, t.max_retries, t.retry, "
    "t.attempt, t.failures, t.available_at, t.lease_expires_at, t.worker_id, t.created_at, t.updated_at, t.started_at, "
    "t.completed_at, t.idempotency_key, t.trace_id, t.version, t.rank, t.lease_id, t.run_at, "
    "t.failure_kind, t.archived_from, t.batch, t.progress, t.progress_text"
)

# In the FROM clause of every statement that writes. Raises an error if a newer qo has migrated the tables.
_ALLOWED = f"(SELECT {{schema}}.require_format({VERSION}) OFFSET 0) AS allowed"


def _load() -> dict[str, str]:
    texts = [file.read_text("utf-8") for file in files("qo.engines.postgres").joinpath("sql").iterdir()]
    blocks = (block.partition("\n") for text in texts for block in text.split("-- name: ")[1:])
    return {name.strip(): body.strip() for name, _, body in blocks}


_SQL = _load()
_FRAGMENTS = (
    "new_tasks",
    "claim_start",
    "lane_shares",
    "claim_end",
    "outdated_heads",
    "takes_needs",
    "is_open",
)  # included by other statements


@cache
def statement(name: str, schema: str) -> str:
    """The text of a statement. A name from `note_statement` includes a table.

    Cached, because the driver finds prepared statements by their text.
    """
    name, _, notes_table = name.partition(":")
    text = _SQL[name].replace("{notes}", notes_table or "notes")
    for fragment in _FRAGMENTS:
        text = text.replace(f"{{{fragment}}}", _SQL[fragment])
    return fill(text, schema)


def note_statement(statement: str, name: str) -> str:
    """The name of the statement for the table of this note, or of the notes with this prefix."""
    table = next((table for prefix, table in NOTE_TABLES.items() if name.startswith(prefix)), "notes")
    return f"{statement}:{table}"


def fill(sql: str, schema: str) -> str:
    return sql.replace("{allowed}", _ALLOWED).replace("{schema}", f'"{schema}"').replace("{columns}", COLUMNS)
