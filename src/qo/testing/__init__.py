"""Tools for testing programs that use qo (docs/testing.md), and contracts for engines and buckets.

No other module of qo imports it, except `App.test_mode` when it is called.

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

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.testing.app_tester import AppTester
    from qo.testing.attempts import Attempt
    from qo.testing.bucket_contract import BucketContract
    from qo.testing.clock import ManualClock
    from qo.testing.engine_contract import EngineContract
    from qo.testing.faults import Fault, Faults, FaultyBucket
    from qo.testing.histories import random_history
    from qo.testing.s3_server import Latency, S3Server
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.testing.app_tester": "AppTester",
            "qo.testing.attempts": "Attempt",
            "qo.testing.bucket_contract": "BucketContract",
            "qo.testing.clock": "ManualClock",
            "qo.testing.engine_contract": "EngineContract",
            "qo.testing.faults": "Fault Faults FaultyBucket",
            "qo.testing.histories": "random_history",
            "qo.testing.s3_server": "Latency S3Server",
        },
    )

__all__ = [
    "AppTester",
    "Attempt",
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
