"""Claim, run, settle: how tasks get done."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.worker.executors import WorkerCancelled, WorkerStuck
    from qo.worker.process_exit import EXIT_STUCK
    from qo.worker.settings import WorkerSettings
    from qo.worker.worker import Watchdog, Worker
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.worker.process_exit": "EXIT_STUCK",
            "qo.worker.executors": "WorkerCancelled WorkerStuck",
            "qo.worker.settings": "WorkerSettings",
            "qo.worker.worker": "Watchdog Worker",
        },
    )

__all__ = ["EXIT_STUCK", "Watchdog", "Worker", "WorkerCancelled", "WorkerSettings", "WorkerStuck"]
