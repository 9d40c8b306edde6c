"""The API for applications: the client of a store, and task handles."""

from qo.client.client import Client, connect
from qo.client.describe import Priority, Seconds, Settings, TaskOptions, describe, parse_instant
from qo.client.handles import Consumer, HeartbeatManager, Producer, QueueState, TaskHandle

__all__ = [
    "Client",
    "Consumer",
    "HeartbeatManager",
    "Priority",
    "Producer",
    "QueueState",
    "Seconds",
    "Settings",
    "TaskHandle",
    "TaskOptions",
    "connect",
    "describe",
    "parse_instant",
]
