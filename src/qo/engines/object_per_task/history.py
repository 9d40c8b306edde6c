"""A task's transitions: from every version the store kept, or from what the present one remembers."""

from qo.bucket import Bucket
from qo.engines.object_per_task.keys import task_key
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.retry import retry
from qo.model import Event


async def history(bucket: Bucket, documents: TaskStore, task_id: str) -> list[Event]:
    present = await documents.read_living(task_id)
    if present is None:
        return []
    if present.document.events[0].version == 1:  # no transition was dropped from the document: it tells them all
        return list(present.document.events)
    events: dict[int, Event] = {}
    for blob in await retry(lambda: bucket.versions(task_key(task_id))):
        kept = documents.decoded(task_id, blob)
        if kept is not None and kept.document.nonce == present.document.nonce:  # an earlier life is another task's
            events |= {event.version: event for event in kept.document.events}
    events |= {event.version: event for event in present.document.events}
    return [events[version] for version in sorted(events)]
