"""The contract for a store whose clock is set: leases keep their length."""

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.model import Status, renew
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, new, stored


class ClockSet:
    @pytest.mark.parametrize("step", [600.0, -600.0], ids=["ahead", "back"])
    async def test_setting_the_clock_neither_shortens_nor_prolongs_a_lease(
        self, engine: Engine, clock: ManualClock, step: float
    ) -> None:
        elapsed = ManualClock()
        client = Client(engine, clock=elapsed)

        def pass_time(seconds: float) -> None:
            clock.advance(seconds)
            elapsed.advance(seconds)

        await engine.add([new(n) for n in range(3)])
        alive, *_ = await claim(engine, lease=30.0)
        assert await client.requeue_stale() == 0
        pass_time(8)
        clock.advance(step)
        pass_time(1)
        assert await client.requeue_stale() == 0  # no lease was renewed since the step
        for _ in range(3):
            assert await engine.apply([renew(alive, 30.0)]) == [True]
            pass_time(6)
            assert await client.requeue_stale() == 0
        pass_time(3)  # 30 seconds after the claim
        assert await client.requeue_stale() == 0
        assert await engine.apply([renew(alive, 30.0)]) == [True]
        pass_time(16)
        assert await client.requeue_stale() == 2
        statuses = [(await stored(engine, n)).status for n in range(3)]
        assert statuses == [Status.RUNNING, Status.PENDING, Status.PENDING]
        pass_time(34)
        assert await client.requeue_stale() == 1
