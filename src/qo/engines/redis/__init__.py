"""Tasks in Redis or Valkey: the lowest latency, for fleets that run one already."""

from qo.engines.redis.doctor import examine
from qo.engines.redis.engine import RedisEngine, from_url

__all__ = ["RedisEngine", "examine", "from_url"]
