"""Damage to what a bucket holds, for the contract: the hooks that spoil one stored task or note of a layout."""

from qo.bucket import ANY, Bucket
from qo.engine import Engine
from qo.engines.patience import patiently
from qo.engines.per_task import PerTaskEngine
from qo.engines.per_task.notes import key_of
from qo.engines.spacious import SpaciousEngine


class DamagedLayouts:
    """Mix it into an EngineContract of layouts."""

    async def damage_note(self, engine: Engine, name: str) -> None:
        below = engine.engine if isinstance(engine, SpaciousEngine) else engine
        if isinstance(below, PerTaskEngine):
            await truncate(below._store.bucket, key_of(name))
        else:
            await engine.write_note(name, b'{"half": ', expected=ANY)


async def truncate(bucket: Bucket, key: str) -> None:
    blob = await patiently(lambda: bucket.get(key))
    assert blob is not None, f"there is no {key}"
    data = blob.data[: len(blob.data) // 2]
    await patiently(lambda: bucket.put(key, data, expected=ANY))
