"""What an application calls: the client of a store, and what it hands out."""

from qo.client.client import Client, connect
from qo.client.describe import Seconds, Settings, describe
from qo.client.handles import Consumer, HeartbeatManager, Producer, QueueState, TaskHandle

__all__ = [
    "Client",
    "Consumer",
    "HeartbeatManager",
    "Producer",
    "QueueState",
    "Seconds",
    "Settings",
    "TaskHandle",
    "connect",
    "describe",
]
