"""Objects under our names that are not ours, or are damaged: left alone, counted, and spoken of once."""

import logging

log = logging.getLogger("qo.engines")
_MOST = 10_000


class Quarantine:
    def __init__(self) -> None:
        self.keys: set[str] = set()

    def put(self, key: str, why: object) -> None:
        if key not in self.keys and len(self.keys) < _MOST:
            self.keys.add(key)
            log.error("%s cannot be read and is left alone: %s", key, why)
