"""Tools for testing programs that use qo, and contracts for engines and buckets. No other module of qo imports it.

class TestMine(EngineContract):
    @pytest.fixture
    async def engine(self, clock):
        engine = MyEngine(clock=clock)
        await engine.open()
        yield engine
        await engine.close()

    async def damage(self, engine, task_id):
        ...  # overwrite this task in the store with bytes that are not a task
"""

from qo.testing.bucket_contract import BucketContract
from qo.testing.clock import ManualClock
from qo.testing.engine_contract import EngineContract
from qo.testing.faults import Fault, Faults, FaultyBucket
from qo.testing.histories import random_history
from qo.testing.s3_server import Latency, S3Server

__all__ = [
    "BucketContract",
    "EngineContract",
    "Fault",
    "Faults",
    "FaultyBucket",
    "Latency",
    "ManualClock",
    "S3Server",
    "random_history",
]
