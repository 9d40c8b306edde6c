"""What goes wrong between a caller and a store, drawn from a seed: the same seed gives the same troubles."""

import random
from enum import Enum


class Fault(Enum):
    LOST_REQUEST = "the request never arrived; the caller waits in vain"
    LOST_RESPONSE = "the store did it; the caller waits in vain"
    LATE = "the caller gave up; the store does it later"
    REFUSED = "the store says that it is too busy"
    SLOW = "the answer takes its time"


class Faults:
    """Draws a fault, or none, for each request. The numbers are probabilities; together at most one."""

    def __init__(
        self,
        seed: int,
        *,
        lost_request: float = 0.0,
        lost_response: float = 0.0,
        late: float = 0.0,
        refused: float = 0.0,
        slow: float = 0.0,
    ) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - chance that can be repeated
        self._chances = {
            Fault.LOST_REQUEST: lost_request,
            Fault.LOST_RESPONSE: lost_response,
            Fault.LATE: late,
            Fault.REFUSED: refused,
            Fault.SLOW: slow,
        }
        if sum(self._chances.values()) > 1:
            raise ValueError("the probabilities of all faults together are more than one")

    def draw(self) -> Fault | None:
        point = self.dice.random()
        for fault, chance in self._chances.items():
            if point < chance:
                return fault
            point -= chance
        return None
