"""The layout `log`: SQLite replicas that follow a create-only log of patchsets in a bucket."""

from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.log_options import LogOptions, SubmitMode

__all__ = ["LogOptions", "ReplicatedLogEngine", "SubmitMode"]
