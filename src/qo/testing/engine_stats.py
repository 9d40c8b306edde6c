"""The contract of statistics: each settlement is counted once, whichever process made it."""

from qo.client import Client
from qo.engine import Engine
from qo.stats import add_up, compact_stats
from qo.stats.archive import HOUR
from qo.testing.clock import ManualClock


class StatsContract:
    async def test_settlements_of_several_processes_are_counted_once(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(HOUR - clock.now % HOUR)
        one, other = (Client(engine, clock=clock) for _ in range(2))
        await one.submit_many([one.new_task("t", b"null", max_retries=0) for _ in range(5)])
        for queue in (one, other):
            for task in await queue.dequeue("t", batch_size=2, lease=60):
                await queue.ack(task)
                await queue.ack(task)  # a repeat
            await queue.recorder.flush()
        (task,) = await other.dequeue("t", lease=60)
        await other.nack(task, "boom")
        await other.recorder.flush()
        for _ in range(3):  # as recorded, merged, and by the hour
            rows = add_up(await one.activity(9 * HOUR))
            assert sum(row.completed for row in rows.values()) == 4
            assert [row.failed for row in rows.values()] == [{"error": 1}]
            clock.advance(1.5 * HOUR)
            await compact_stats(engine, clock.now)
