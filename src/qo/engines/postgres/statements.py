"""The SQL, kept in its own file."""

from functools import cache
from importlib.resources import files

# Of a task, as `rows` reads them.
COLUMNS = (
    "t.id::text, t.lane, t.status, t.payload, t.result, t.error, t.priority, t.timeout, t.max_retries, t.retry, "
    "t.attempt, t.failures, t.available_at, t.lease_expires_at, t.worker_id, t.created_at, t.updated_at, t.started_at, "
    "t.completed_at, t.idempotency_key, t.trace_id, t.version, t.rank, t.lease_id"
)


def _load() -> dict[str, str]:
    text = files("qo.engines.postgres").joinpath("statements.sql").read_text("utf-8")
    blocks = (block.partition("\n") for block in text.split("-- name: ")[1:])
    return {name.strip(): body.strip() for name, _, body in blocks}


_SQL = _load()


@cache
def statement(name: str, schema: str) -> str:
    """Ready for the driver: its prepared statements are known by their text."""
    return fill(_SQL[name].replace("{given}", _SQL["given"]), schema)


def fill(sql: str, schema: str) -> str:
    return sql.replace("{schema}", f'"{schema}"').replace("{columns}", COLUMNS)
