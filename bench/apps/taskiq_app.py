"""taskiq application."""

from peerbench.base import Settings, hit
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

settings = Settings.from_env()
kind = RedisStreamBroker if settings.options["broker"] == "stream" else ListQueueBroker
broker = kind(settings.redis_url).with_result_backend(RedisAsyncResultBackend(settings.redis_url, result_ex_time=600))


@broker.task(task_name="noop")
async def noop(payload: dict) -> int:
    return hit(payload)
