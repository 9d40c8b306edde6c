"""`qo doctor` for the layout `sqlite`. The object is only read."""

from qo.bucket import Bucket
from qo.engines.sqlite_object.engine import KEY
from qo.engines.sqlite_object.image import Image
from qo.errors import StorageError
from qo.findings import Finding
from qo.model import plural

_LARGE_DATABASE = 64 * 1024 * 1024  # bytes, which every write sends


async def examine(bucket: Bucket) -> Finding:
    try:
        blob = await bucket.get(KEY)
        if blob is None:
            return Finding("database", True, f"there is no {KEY} yet; the first task creates it")
        image = Image(KEY, blob.data, bucket.now)
    except StorageError as error:
        return Finding("database", False, str(error))
    number = sum(image.reader.count().values())
    image.close()
    summary = f"{KEY} holds {plural(number)} in {len(blob.data) / 1e6:,.1f} MB"
    if len(blob.data) > _LARGE_DATABASE:
        return Finding(
            "database", None, f"{summary}, and every write sends all of it; delete old tasks, or use the layout `tasks`"
        )
    return Finding("database", True, summary)
