"""Layout `sqlite`: a SQLite database kept as one object of a bucket."""

from qo.engines.sqlite_object.doctor import examine
from qo.engines.sqlite_object.engine import DurabilityMode, SqliteObjectEngine

__all__ = ["DurabilityMode", "SqliteObjectEngine", "examine"]
