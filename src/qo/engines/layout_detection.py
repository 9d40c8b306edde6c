"""Finds the layout of a queue in a bucket, so that a URL need not name it."""

from collections.abc import Callable
from typing import NamedTuple

from qo.bucket import Bucket
from qo.engine import Engine
from qo.engines.requests import in_parallel, retry_opening
from qo.errors import InvalidSetting, Refused
from qo.forwarding_engine import ForwardingEngine

DEFAULT_LAYOUT, CLOUD_LAYOUT = "tasks", "tasks"  # of a new queue in a folder, and in a cloud store
# One object of each layout has a fixed name.
_NAMES = {"format.json": "tasks", "queue.json": "one", "queue.sqlite": "sqlite", "log/meta.json": "log"}
_PREFIXES = ("format.json", "queue.", "log/meta.json")  # a listing of each shows the names above without their content
_PREFIX_LAYOUTS = {"format.json": "tasks", "log/meta.json": "log"}
_TASKS = "tasks/"  # a queue of an early version, in the layout `tasks`, has no format.json


class LayoutSearch(NamedTuple):
    found: str | None  # the layout of the queue; None: there is no queue
    listable: frozenset[str]  # layouts whose objects the credentials may list

    def chosen(self, default: str) -> str:
        """The layout to use. A role for one layout creates a queue in this layout, as it can write no other."""
        if self.found is not None:
            return self.found
        return default if default in self.listable or len(self.listable) != 1 else next(iter(self.listable))


async def find_layout(bucket: Bucket) -> str | None:
    """The layout of the queue that the bucket holds, or None if there is no queue. Raises as `search_layout`."""
    return (await search_layout(bucket)).found


async def search_layout(bucket: Bucket) -> LayoutSearch:
    """Detect the layout. Raises InvalidSetting if the bucket holds several queues in different layouts."""
    found, listable = await _layouts(bucket)
    if len(found) > 1:
        raise InvalidSetting(f"there are queues in the layouts {_names(found)}; choose one with layout= in the URL")
    return LayoutSearch(found.pop() if found else None, listable)


async def check_layout(bucket: Bucket, layout: str) -> None:
    """Raise InvalidSetting if there is no queue in this layout, but one in another: two queues would need two names."""
    found, _ = await _layouts(bucket)
    if found and layout not in found:
        raise InvalidSetting(
            f"layout={layout}: the queue here is in the layout {_names(found)}; remove the option, or choose another"
            " prefix for a new queue"
        )


async def _layouts(bucket: Bucket) -> tuple[set[str], frozenset[str]]:
    """The layouts of all queues, and those whose objects the credentials may list."""
    listings = dict(zip(_PREFIXES, await in_parallel(lambda prefix: _existing(bucket, prefix), _PREFIXES), strict=True))
    listable = frozenset(layout for prefix, layout in _PREFIX_LAYOUTS.items() if listings[prefix] is not None)
    found = {_NAMES[key] for keys in listings.values() for key in keys or ()}
    if not found and await _existing(bucket, _TASKS):
        found = {"tasks"}
    return found, listable


def _names(layouts: set[str]) -> str:
    return " and ".join(f"`{layout}`" for layout in sorted(layouts))


async def _existing(bucket: Bucket, prefix: str) -> set[str] | None:
    """The names of layouts' objects with this prefix; for the prefix of tasks, any one. None: it may not be listed."""
    try:
        return await retry_opening(lambda: _listed(bucket, prefix))
    except Refused:  # a role may list only what it uses
        return None


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

    def __init__(self, bucket: Bucket, build: Callable[[str], Engine], default: str) -> None:
        """`build` creates the engine of a layout. Raises InvalidSetting if the options do not belong to it."""
        super().__init__(build(default))
        self._bucket, self._build, self._default = bucket, build, default
        self._is_chosen = False

    async def open(self) -> None:
        if not self._is_chosen:
            layout = (await search_layout(self._bucket)).chosen(self._default)
            if layout != self._default:
                self.engine = self._build(layout)
            self._is_chosen = True
        await super().open()


class NamedLayoutEngine(ForwardingEngine):
    """Uses the layout that the URL names, unless the bucket has a queue in another one."""

    def __init__(self, bucket: Bucket, engine: Engine, layout: str) -> None:
        super().__init__(engine)
        self._bucket, self._layout, self._is_checked = bucket, layout, False

    async def open(self) -> None:
        if not self._is_checked:
            await check_layout(self._bucket, self._layout)
            self._is_checked = True
        await super().open()
