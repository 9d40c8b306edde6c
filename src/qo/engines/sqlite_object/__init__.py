"""Layout `sqlite`: a SQLite database kept as one object of a bucket."""

from qo.engines.sqlite_object.engine import DurabilityMode, SqliteObjectEngine, examine

__all__ = ["DurabilityMode", "SqliteObjectEngine", "examine"]
