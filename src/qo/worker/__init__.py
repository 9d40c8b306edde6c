"""Claims, runs and settles tasks."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.worker.executors import WorkerCancelled
    from qo.worker.process_exit import EXIT_STUCK
    from qo.worker.settings import WorkerSettings
    from qo.worker.store_calls import WorkerStuck
    from qo.worker.watchdog import Watchdog
    from qo.worker.worker import Worker
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.worker.process_exit": "EXIT_STUCK",
            "qo.worker.executors": "WorkerCancelled",
            "qo.worker.store_calls": "WorkerStuck",
            "qo.worker.settings": "WorkerSettings",
            "qo.worker.watchdog": "Watchdog",
            "qo.worker.worker": "Worker",
        },
    )

__all__ = ["EXIT_STUCK", "Watchdog", "Worker", "WorkerCancelled", "WorkerSettings", "WorkerStuck"]
