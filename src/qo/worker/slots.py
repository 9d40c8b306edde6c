"""How many tasks run at once in a worker, whatever executes them."""

import threading
from collections.abc import Callable


class Slots:
    """Executors take a slot for each run and pump each other when one comes free."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._lock = threading.Lock()
        self._pumps: list[Callable[[], None]] = []

    def join(self, pump: Callable[[], None]) -> None:
        """`pump` is called, from any thread, when a slot may be free."""
        self._pumps.append(pump)

    def leave(self, pump: Callable[[], None]) -> None:
        self._pumps.remove(pump)

    def take(self) -> bool:
        with self._lock:
            if self._free <= 0:
                return False
            self._free -= 1
            return True

    def give(self) -> None:
        with self._lock:
            self._free += 1

    def pump(self) -> None:
        for pump in list(self._pumps):
            pump()
