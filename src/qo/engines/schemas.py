"""The schema version of a store's tables, and the one that this qo knows. Stores without tables have no schema."""

from typing import NamedTuple


class Schema(NamedTuple):
    found: int  # 0: the store does not exist yet
    known: int

    @property
    def is_current(self) -> bool:
        return self.found >= self.known  # a newer schema that this qo may use needs no migration
