"""Finds the layout of a queue in a bucket, so that a URL need not name it."""

from collections.abc import Callable, Collection

from qo.bucket import Bucket
from qo.engine import Engine
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry_opening
from qo.errors import InvalidSetting, Refused
from qo.forwarding_engine import ForwardingEngine

DEFAULT_LAYOUT = "tasks"  # of a new queue
# One object of each layout has a fixed name.
_NAMES = {"format.json": "tasks", "queue.json": "one", "queue.sqlite": "sqlite", "log/meta.json": "log"}
_PREFIXES = ("format.json", "queue.", "log/meta.json")  # a listing of each shows the names above without their content
_TASKS = "tasks/"  # a queue of an early version, in the layout `tasks`, has no format.json


async def find_layout(bucket: Bucket) -> str | None:
    """The layout of the queue that the bucket holds, or None if there is no queue.

    Raises InvalidSetting if the bucket holds several queues, in different layouts.
    """
    found = {
        _NAMES[key] for keys in await in_parallel(lambda prefix: _existing(bucket, prefix), _PREFIXES) for key in keys
    }
    if not found:
        return DEFAULT_LAYOUT if await _existing(bucket, _TASKS) else None
    if len(found) > 1:
        names = " and ".join(f"`{layout}`" for layout in sorted(found))
        raise InvalidSetting(f"there are queues in the layouts {names}; choose one with layout= in the URL")
    return found.pop()


async def _existing(bucket: Bucket, prefix: str) -> Collection[str]:
    """The names of layouts' objects with this prefix; for the prefix of tasks, any one."""
    try:
        return await retry_opening(lambda: _listed(bucket, prefix))
    except Refused:  # a role may list only what it uses
        return ()


async def _listed(bucket: Bucket, prefix: str) -> set[str]:
    found = set[str]()
    async for key in bucket.keys(prefix):
        if prefix == _TASKS:
            return {key}
        if key in _NAMES:
            found.add(key)
    return found


class DetectedLayoutEngine(ForwardingEngine):
    """Looks for the layout when it is opened. A new queue gets the default one."""

    def __init__(self, bucket: Bucket, build: Callable[[str], Engine]) -> None:
        """`build` creates the engine of a layout. Raises InvalidSetting if the options do not belong to it."""
        super().__init__(build(DEFAULT_LAYOUT))
        self._bucket, self._build = bucket, build
        self._is_chosen = False

    async def open(self) -> None:
        if not self._is_chosen:
            layout = await find_layout(self._bucket)
            if layout is not None and layout != DEFAULT_LAYOUT:
                self.engine = self._build(layout)
            self._is_chosen = True
        await super().open()
