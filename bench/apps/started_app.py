"""Writes down when each task started; QO_URL says where the tasks are, STARTS in which file."""

import os
import struct
import time

from qo import App

STARTED = struct.Struct("<qq")  # nanoseconds: when the producer called enqueue, when the handler started

app = App()
_starts = os.open(os.environ["STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task
def noop(t: int) -> None:
    os.write(_starts, STARTED.pack(t, time.monotonic_ns()))
