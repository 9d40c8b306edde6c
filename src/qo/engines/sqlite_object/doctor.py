"""Examining the object for `qo doctor`. It is only read."""

from qo.bucket import Bucket
from qo.engines.sqlite_object.engine import KEY
from qo.engines.sqlite_object.image import Image
from qo.errors import StorageError
from qo.findings import Finding

_MUCH = 64 * 1024 * 1024  # bytes, sent with every write


async def examine(bucket: Bucket) -> Finding:
    try:
        blob = await bucket.get(KEY)
        if blob is None:
            return Finding("database", True, f"there is no {KEY} yet; the first task creates it")
        image = Image(KEY, blob.data, bucket.now)
    except StorageError as error:
        return Finding("database", False, str(error))
    number = sum(image.reading.count().values())
    image.close()
    words = f"{KEY} holds {number:,} tasks in {len(blob.data) / 1e6:,.1f} MB"
    if len(blob.data) > _MUCH:
        return Finding("database", None, f"{words}, sent with every write; delete old tasks, or use the layout `tasks`")
    return Finding("database", True, words)
