"""The SQLite file engine: the default, for one machine and many processes."""

from qo.engines.sqlite.doctor import examine
from qo.engines.sqlite.engine import SqliteEngine, from_url
from qo.engines.sqlite.file import is_missing, schema_of

__all__ = ["SqliteEngine", "examine", "from_url", "is_missing", "schema_of"]
