"""What an application calls: tasks in, tasks out, and a look at everything between."""

from qo.queue.describe import Seconds, Settings, describe
from qo.queue.handles import Consumer, HeartbeatManager, Producer, Submitted
from qo.queue.looking import QueueState
from qo.queue.queue import Queue, connect
from qo.queue.switches import Switches

__all__ = [
    "Consumer",
    "HeartbeatManager",
    "Producer",
    "Queue",
    "QueueState",
    "Seconds",
    "Settings",
    "Submitted",
    "Switches",
    "connect",
    "describe",
]
