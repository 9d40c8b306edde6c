"""Layout `tasks`: one object per task, and tiny index objects whose names tell a claim all it needs to decide.

tasks/{shard}/{id}.json    the task: the only truth
ready/, leases/            indexes: entries are written before the state that needs them and removed after it
workers/, notes/, admin/   notes (engines/note_objects.py)
"""

from qo.engines.object_per_task.engine import ObjectPerTaskEngine
from qo.engines.object_per_task.options import IndexMode, TasksOptions

__all__ = ["IndexMode", "ObjectPerTaskEngine", "TasksOptions"]
