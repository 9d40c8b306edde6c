"""How far a store's tables are, next to what this qo knows. Stores without tables have no schema."""

from typing import NamedTuple


class Schema(NamedTuple):
    found: int  # 0: there is no queue yet
    known: int

    @property
    def is_current(self) -> bool:
        return self.found >= self.known  # a newer one that this qo may use is no reason to migrate
