"""Claim, run, settle: how tasks get done."""

from qo.worker.executors import WorkerCancelled, WorkerStuck
from qo.worker.settings import WorkerSettings
from qo.worker.watchdog import EXIT_STUCK, Watchdog
from qo.worker.worker import Worker

__all__ = ["EXIT_STUCK", "Watchdog", "Worker", "WorkerCancelled", "WorkerSettings", "WorkerStuck"]
