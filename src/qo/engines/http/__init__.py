"""The HTTP engine: the engine port over HTTP, for workers without storage credentials."""

from qo.engines.http.doctor import examine
from qo.engines.http.engine import HttpEngine, from_url

__all__ = ["HttpEngine", "examine", "from_url"]
