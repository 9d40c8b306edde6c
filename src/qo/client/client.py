"""What an application calls: tasks in, tasks out, and a look at everything between.

async with qo.connect("sqlite:///qo.db") as queue:
    submitted = await queue.enqueue("send_email", {"to": "a@example.com"})
    [task] = await queue.dequeue("send_email")
    await queue.ack(task)
"""

from typing import Literal

from qo.client.describe import Settings
from qo.client.steering import Steering
from qo.client.submitting import Submitting
from qo.client.taking import Taking
from qo.engines import open_engine, open_storage
from qo.storages import ObjectStorage


class Client(Submitting, Taking, Steering):
    """All queues of one store. Safe for any number of concurrent callers on one event loop."""


def connect(
    url: str | ObjectStorage, settings: Settings | None = None, *, mode: Literal["group", "direct"] = "group"
) -> Client:
    """The queue at a URL, as an async context manager.

    An object of yours with `read` and `write` in place of a URL keeps the whole queue as one JSON document; `mode` then
    says whether concurrent calls share a write (`group`) or each makes its own (`direct`).
    """
    return Client(open_engine(url) if isinstance(url, str) else open_storage(url, mode), settings)
