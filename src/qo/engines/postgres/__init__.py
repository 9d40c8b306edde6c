"""Tasks in a Postgres database: for fleets that have one."""

from qo.engines.postgres.doctor import examine
from qo.engines.postgres.engine import PostgresEngine, from_url, schema_of

__all__ = ["PostgresEngine", "examine", "from_url", "schema_of"]
