"""Objects under qo's prefixes that are damaged or foreign. They are ignored, counted, and logged once."""

import logging

log = logging.getLogger("qo.engines")
_MAX_KEYS = 10_000


class Quarantine:
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._unreported: dict[str, str] = {}  # damaged tasks without a note yet, and why

    def put(self, key: str, why: object) -> None:
        if key not in self.keys and len(self.keys) < _MAX_KEYS:
            self.keys.add(key)
            log.error("%s cannot be read and is ignored: %s", key, why)

    def put_task(self, key: str, task_id: str, why: object) -> None:
        if key not in self.keys:
            self._unreported[task_id] = f"{key} does not decode: {why}"
        self.put(key, why)

    def report_later(self, task_id: str, why: str) -> None:
        self._unreported[task_id] = why

    def release_task(self, key: str, task_id: str) -> None:
        """The task can be read, or is gone: it was restored or removed, or only one response was damaged."""
        self.keys.discard(key)
        self._unreported.pop(task_id, None)

    def take_unreported(self) -> dict[str, str]:
        unreported, self._unreported = self._unreported, {}
        return unreported
