"""Watching over the queue: lost tasks, silent workers, old tasks."""

from qo.monitor.monitor import Checked, Monitor
from qo.monitor.settings import MonitorSettings

__all__ = ["Checked", "Monitor", "MonitorSettings"]
