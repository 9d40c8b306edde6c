"""Layout `tasks`: one object per task, and small index objects whose names hold everything that a claim needs.

- `tasks/{shard}/{id}.json`: the task, the only source of truth
- `ready/`, `leases/`: the index. An entry is written before the state that needs it, and removed after it
- `workers/`, `notes/`, `admin/`: notes (`engines/note_objects.py`)
"""

from qo.engines.object_per_task.engine import ObjectPerTaskEngine
from qo.engines.object_per_task.layout import IndexMode, TasksOptions

__all__ = ["IndexMode", "ObjectPerTaskEngine", "TasksOptions"]
