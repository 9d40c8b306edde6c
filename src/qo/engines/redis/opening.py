"""From a URL to an engine."""

from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.redis.address import address_of
from qo.engines.redis.engine import RedisEngine
from qo.errors import InvalidSetting


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:
    address = address_of(url)
    engine = RedisEngine(address, clock)
    if address.archive is None:
        return engine
    try:
        from qo.engines.redis.archive import PostgresArchive  # noqa: PLC0415 - its driver is an extra
        from qo.engines.redis.archived_engine import ArchivingEngine  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSetting("archive= needs its driver: pip install 'qo-queue[postgres]'") from error
    return ArchivingEngine(engine, PostgresArchive(address.archive, address.prefix), clock)
