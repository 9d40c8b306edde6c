"""The transitions of a task, from all stored versions or from the events in the current one."""

from qo.bucket import Bucket
from qo.engines.object_per_task.keys import task_key
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.retry import retry
from qo.model import Event


async def history(bucket: Bucket, documents: TaskStore, task_id: str) -> list[Event]:
    present = await documents.read_live(task_id)
    if present is None:
        return []
    if present.document.events[0].version == 1:  # no event was dropped from the document
        return list(present.document.events)
    events: dict[int, Event] = {}
    for blob in await retry(lambda: bucket.versions(task_key(task_id))):
        stored = documents.decoded(task_id, blob)
        # another nonce belongs to an earlier task with the same id
        if stored is not None and stored.document.nonce == present.document.nonce:
            events |= {event.version: event for event in stored.document.events}
    events |= {event.version: event for event in present.document.events}
    return [events[version] for version in sorted(events)]
