"""Layout `one`: the whole queue in one object, for any store that can write one object with compare-and-set."""

from qo.engines.one_object.engine import CommitMode, OneObjectEngine
from qo.engines.one_object.storage_bucket import StorageBucket

__all__ = ["CommitMode", "OneObjectEngine", "StorageBucket"]
