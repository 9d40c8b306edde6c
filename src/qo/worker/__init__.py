"""Claims, runs and settles tasks."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.worker.process_exit import EXIT_STUCK, Watchdog
    from qo.worker.settings import WorkerSettings
    from qo.worker.waits import WorkerCancelled, WorkerStuck
    from qo.worker.worker import Worker
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.worker.process_exit": "EXIT_STUCK Watchdog",
            "qo.worker.waits": "WorkerCancelled WorkerStuck",
            "qo.worker.settings": "WorkerSettings",
            "qo.worker.worker": "Worker",
        },
    )

__all__ = ["EXIT_STUCK", "Watchdog", "Worker", "WorkerCancelled", "WorkerSettings", "WorkerStuck"]
