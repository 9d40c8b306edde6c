"""A log with cold segments, for tests."""

from qo.engines.replicated_log import LogOptions
from qo.model import complete
from qo.testing.samples import claim
from tests.engines.log_queue import Queue

# Of each lane four tasks stay in the tables if it has more than six. Finished tasks are moved after an hour.
OPTIONS = LogOptions(
    block_size=4,
    image_threshold=1,
    min_record_age=100.0,
    trust=10.0,
    segment_size=5,
    segment_span=20,
    hot_tasks=6,
    kept_tasks=4,
    thaw_time=0.0,
)
DEPTH, BATCH = 40, 8


class ColdQueue(Queue):
    """A queue with a deep lane, most of which is in segments."""

    def __init__(self, options: LogOptions = OPTIONS) -> None:
        super().__init__()
        self.process = self.engine(options)

    async def fill(self, batch_size: int = BATCH, **fields: object) -> list[str]:
        """Add tasks, and move what is deep. Returns the ids in the order of their submission."""
        tasks = []
        for at in range(DEPTH):
            self.clock.advance(1)
            tasks.append(self.task(**fields))
            if at % batch_size == batch_size - 1:
                await self.process.add(tasks[-batch_size:])
        await self.process.repair()
        return [task.id for task in tasks]

    async def objects(self) -> list[str]:
        return [key async for key in self.bucket.keys("log/") if "/cold/" in key]

    async def finish(self, ids: list[str]) -> None:
        for task in await claim(self.process, limit=len(ids)):
            await self.process.apply([complete(task, b"done")])

    async def cool_down(self) -> None:
        self.clock.advance(2 * OPTIONS.cold_age)
        await self.process.repair()
