"""Tasks in Redis or Valkey: the lowest latency, for fleets that run one already."""

from qo.engines.redis.doctor import examine, schema_of
from qo.engines.redis.engine import RedisEngine, from_url

__all__ = ["RedisEngine", "examine", "from_url", "schema_of"]
