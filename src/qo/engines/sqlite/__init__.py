"""Tasks in a SQLite file: the default, for one machine and many processes."""

from qo.engines.sqlite.doctor import examine
from qo.engines.sqlite.engine import SqliteEngine, from_url

__all__ = ["SqliteEngine", "examine", "from_url"]
