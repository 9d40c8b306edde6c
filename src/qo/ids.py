"""The only module that generates ids, tokens and random numbers."""

import os
import random
import re
from collections import deque

from qo.clock import Clock, system_clock

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}

_DIGITS, _BATCH_SIZE = 32, 256  # random hexadecimal digits for one id, and ids per call of os.urandom
_random_digits: deque[str] = deque()  # popleft is atomic, so threads need no lock
os.register_at_fork(after_in_child=_random_digits.clear)  # a child must not repeat its parent's ids

random_fraction = random.SystemRandom().random  # uniform in [0, 1), for jitter


def new_id(clock: Clock = system_clock) -> str:
    """A UUID (version 8): one random hex digit, 44 bits of milliseconds, then 74 random bits.

    The first digit spreads tasks over sixteen shards. After it ids grow with time, so inserts touch only
    sixteen places of an index, however deep the queue is.
    """
    digits = _draw()
    time = "%011x" % (int(clock() * 1000) & 0xFFFFFFFFFFF)
    return f"{digits[0]}{time[:7]}-{time[7:]}-8{digits[1:4]}-{_VARIANT[digits[4]]}{digits[5:8]}-{digits[8:20]}"


def new_token() -> str:
    """128 random bits as 32 hexadecimal digits: a lease id, a write id, the name of a blob."""
    return _draw()


def _draw() -> str:
    """Random digits for one id. os.urandom releases the GIL, and reacquiring it is slow while other threads run."""
    try:
        return _random_digits.popleft()
    except IndexError:
        fresh = os.urandom(_DIGITS // 2 * _BATCH_SIZE).hex()
        _random_digits.extend(fresh[at : at + _DIGITS] for at in range(_DIGITS, len(fresh), _DIGITS))
        return fresh[:_DIGITS]


def new_worker_id(host: str) -> str:
    """A unique id that shows the host and the process. It is always a valid name."""
    prefix = re.sub(r"[^A-Za-z0-9_.:-]", "-", host[:40]).lstrip("_.:-") or "host"
    return f"{prefix}-{os.getpid()}-{os.urandom(3).hex()}"
