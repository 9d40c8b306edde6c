"""Objects under our names that are not ours, or are damaged: left alone, counted, and spoken of once."""

import logging

log = logging.getLogger("qo.engines")
_MOST = 10_000


class Quarantine:
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._untold: dict[str, str] = {}  # tasks among them, and why: not yet said in a note

    def put(self, key: str, why: object) -> None:
        if key not in self.keys and len(self.keys) < _MOST:
            self.keys.add(key)
            log.error("%s cannot be read and is left alone: %s", key, why)

    def put_task(self, key: str, task_id: str, why: object) -> None:
        if key not in self.keys:
            self._untold[task_id] = f"{key} does not decode: {why}"
        self.put(key, why)

    def tell_later(self, task_id: str, why: str) -> None:
        self._untold[task_id] = why

    def release_task(self, key: str, task_id: str) -> None:
        """It can be read, or is gone: it was restored, removed, or only its answer was damaged."""
        self.keys.discard(key)
        self._untold.pop(task_id, None)

    def take_untold(self) -> dict[str, str]:
        untold, self._untold = self._untold, {}
        return untold
