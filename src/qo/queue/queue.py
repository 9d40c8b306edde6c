"""What an application calls: tasks in, tasks out, and a look at everything between.

async with qo.connect("sqlite:///qo.db") as queue:
    submitted = await queue.enqueue("send_email", {"to": "a@example.com"})
    [task] = await queue.dequeue("send_email")
    await queue.ack(task)
"""

from qo.engines import open_engine
from qo.queue.describe import Settings
from qo.queue.steering import Steering
from qo.queue.submitting import Submitting
from qo.queue.taking import Taking


class Queue(Submitting, Taking, Steering):
    """All queues of one store. Safe for any number of concurrent callers on one event loop."""


def connect(url: str, settings: Settings | None = None) -> Queue:
    """The queue at a URL, as an async context manager."""
    return Queue(open_engine(url), settings)
