"""The monitor: recovers tasks of dead workers, marks dead workers, and applies retention."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.monitor.monitor import Checked, Monitor
    from qo.monitor.settings import MonitorSettings
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.monitor.monitor": "Checked Monitor",
            "qo.monitor.settings": "MonitorSettings",
        },
    )

__all__ = ["Checked", "Monitor", "MonitorSettings"]
