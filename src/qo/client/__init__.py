"""What an application calls: tasks in, tasks out, and a look at everything between."""

from qo.client.client import Client, connect
from qo.client.describe import Seconds, Settings, describe
from qo.client.handles import Consumer, HeartbeatManager, Producer, Submitted
from qo.client.looking import QueueState
from qo.client.switches import Switches

__all__ = [
    "Client",
    "Consumer",
    "HeartbeatManager",
    "Producer",
    "QueueState",
    "Seconds",
    "Settings",
    "Submitted",
    "Switches",
    "connect",
    "describe",
]
