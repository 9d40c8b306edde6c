"""Finds and removes blobs that no task refers to. Crashes leave them behind."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from qo.clock import Clock
from qo.damage import DAMAGED_TASKS
from qo.engine import Engine
from qo.engines.large_values.blobs import MAX_TRANSFERS, BlobStore
from qo.engines.large_values.references import follower_in, own_key, task_id_in
from qo.engines.parallel import in_parallel
from qo.model import Task

MIN_ORPHAN_AGE = 3600.0  # seconds: a younger blob may belong to a write in progress
_PAGE_SIZE = 500  # tasks


async def remove_orphans(engine: Engine, blobs: BlobStore, clock: Clock, *, kept: Callable[[], Collection[str]]) -> int:
    """Remove the blobs that no task refers to, except those in `kept`. Returns the number of removals."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in await blobs.keys():
        if task_id := task_id_in(key):  # otherwise the object is foreign
            found[task_id].append(key)
    ids, removed = sorted(found), 0

    async def remove_if_old(key: str) -> bool:
        blob = await blobs.get(key)
        if blob is None or blob.written_at > clock() - MIN_ORPHAN_AGE:
            return False
        await blobs.remove([key])
        return True

    for page in (ids[at : at + _PAGE_SIZE] for at in range(0, len(ids), _PAGE_SIZE)):
        unused = await _unused(engine, [key for task_id in page for key in found[task_id]])
        still_needed = kept()  # read last, because tasks may have been deleted meanwhile
        orphans = [key for key in unused if key not in still_needed]
        removed += sum(await in_parallel(remove_if_old, orphans, max_concurrent=MAX_TRANSFERS))
    return removed


async def _unused(engine: Engine, keys: list[str]) -> list[str]:
    """The blobs that no task refers to. A damaged task may refer to any blob with its id."""
    tasks = await engine.get(sorted({task_id for key in keys if (task_id := task_id_in(key)) is not None}))
    needed = used_keys(tasks)
    unused = [key for key in keys if key not in needed]
    if followers := followers_in(unused):
        following = await engine.get(followers)
        needed, tasks = needed | used_keys(following), [*tasks, *following]
    damaged = await _damaged(engine) if None in tasks else frozenset()
    return [key for key in unused if key not in needed and damaged.isdisjoint((task_id_in(key), follower_in(key)))]


async def _damaged(engine: Engine) -> frozenset[str]:
    """The ids of damaged tasks. Which values they need is unknown, and they may be restored."""
    notes = await engine.notes(DAMAGED_TASKS)
    return frozenset(note.name.removeprefix(DAMAGED_TASKS) for note in notes)


def used_keys(tasks: Iterable[Task | None]) -> frozenset[str]:
    """The blobs that these tasks refer to. References to blobs of other tasks are forged and ignored."""
    return frozenset(
        key
        for task in tasks
        if task is not None
        for key in (own_key(task.payload, task.id, "payload"), own_key(task.result or b"", task.id, "result"))
        if key is not None
    )


def followers_in(keys: Iterable[str]) -> list[str]:
    """The tasks that may refer to these payloads as successors under an idempotency key."""
    return sorted({task_id for key in keys if (task_id := follower_in(key)) is not None})
