"""The SQL: every statement of the engine by its name, from the files in `sql/`.

A batch travels as arrays, one a column, and is one statement: a task, its events and the counts change together or not
at all. `:now` is null in production, where the server's own clock rules; tests pass theirs. Locks are taken on tasks in
the order of their ids, so that batches wait for each other and never in a ring.
"""

from functools import cache
from importlib.resources import files

from qo.engines.postgres.version import VERSION
from qo.model import ADMIN_NOTES, AUDIT_NOTES

# Notes with tables of their own, by how their names begin: GRANTs keep roles out of a table.
NOTE_TABLES = {ADMIN_NOTES: "admin_notes", AUDIT_NOTES: "audit_notes"}

# Of a task, as `rows` reads them.
COLUMNS = (
    "t.id::text, t.lane, t.status, t.payload, t.result, t.error, t.priority, t.timeout, t.max_retries, t.retry, "
    "t.attempt, t.failures, t.available_at, t.lease_expires_at, t.worker_id, t.created_at, t.updated_at, t.started_at, "
    "t.completed_at, t.idempotency_key, t.trace_id, t.version, t.rank, t.lease_id, t.run_at, "
    "t.failure_kind, t.archived_from"
)

# In the FROM of every statement that writes. Raises if a newer qo has come since the queue was opened.
ALLOWED = f"(SELECT {{schema}}.require_format({VERSION}) OFFSET 0) AS allowed"


def _load() -> dict[str, str]:
    texts = [file.read_text("utf-8") for file in files("qo.engines.postgres").joinpath("sql").iterdir()]
    blocks = (block.partition("\n") for text in texts for block in text.split("-- name: ")[1:])
    return {name.strip(): body.strip() for name, _, body in blocks}


_SQL = _load()


@cache
def statement(name: str, schema: str) -> str:
    """Ready for the driver: its prepared statements are known by their text. `name` may end in `:table`, of notes."""
    name, _, notes = name.partition(":")
    text = _SQL[name].replace("{notes}", notes or "notes")
    for part in ("given", "claiming", "by_lanes", "taking"):
        text = text.replace(f"{{{part}}}", _SQL[part])
    return fill(text, schema)


def of_note(statement: str, name: str) -> str:
    """The name of the statement for the table that this note, or notes of this prefix, lie in."""
    table = next((table for prefix, table in NOTE_TABLES.items() if name.startswith(prefix)), "notes")
    return f"{statement}:{table}"


def fill(sql: str, schema: str) -> str:
    return sql.replace("{allowed}", ALLOWED).replace("{schema}", f'"{schema}"').replace("{columns}", COLUMNS)
