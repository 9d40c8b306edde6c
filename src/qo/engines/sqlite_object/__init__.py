"""Layout `sqlite`: a SQLite database kept as one object of a bucket."""

from qo.engines.sqlite_object.doctor import examine
from qo.engines.sqlite_object.engine import Mode, SqliteObjectEngine

__all__ = ["Mode", "SqliteObjectEngine", "examine"]
