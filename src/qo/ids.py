"""The only maker of ids, secrets and chance."""

import os
import random
import re
from collections import deque

from qo.clock import Clock, system_clock

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}

_DIGITS, _DRAWN = 32, 256  # hexadecimal digits of chance for one id, and ids drawn for at a time
_chance: deque[str] = deque()  # whoever takes from it takes alone: popping is one step, whatever threads there are
os.register_at_fork(after_in_child=_chance.clear)  # a child must not repeat its parent's ids

luck = random.SystemRandom().random  # uniform in [0, 1), for jitter


def new_id(clock: Clock = system_clock) -> str:
    """A UUID (version 8): one random hex digit, 44 bits of milliseconds, then 74 random bits.

    The first digit spreads tasks over sixteen shards. Behind it ids grow with time, so an index on
    them is written in sixteen places only, however deep the queue.
    """
    chance = _draw()
    time = "%011x" % (int(clock() * 1000) & 0xFFFFFFFFFFF)
    return f"{chance[0]}{time[:7]}-{time[7:]}-8{chance[1:4]}-{_VARIANT[chance[4]]}{chance[5:8]}-{chance[8:20]}"


def new_token() -> str:
    """128 random bits as 32 hexadecimal digits: a lease id, a write id, the name of a blob."""
    return _draw()


def _draw() -> str:
    """Each call of the system's own lets go of the interpreter, and beside busy threads that takes long to get back."""
    try:
        return _chance.popleft()
    except IndexError:
        fresh = os.urandom(_DIGITS // 2 * _DRAWN).hex()
        _chance.extend(fresh[at : at + _DIGITS] for at in range(_DIGITS, len(fresh), _DIGITS))
        return fresh[:_DIGITS]


def new_worker_id(host: str) -> str:
    """Tells workers apart, and people where one runs. Always a name as `check_name` wants it."""
    place = re.sub(r"[^A-Za-z0-9_.:-]", "-", host[:40]).lstrip("_.:-") or "host"
    return f"{place}-{os.getpid()}-{os.urandom(3).hex()}"
