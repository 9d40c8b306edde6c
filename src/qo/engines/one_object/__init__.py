"""Layout `one`: the whole queue in one object, so that any store with a compare-and-set write of one object will do."""

from qo.engines.one_object.adapter import StorageBucket
from qo.engines.one_object.engine import CommitMode, OneObjectEngine

__all__ = ["CommitMode", "OneObjectEngine", "StorageBucket"]
