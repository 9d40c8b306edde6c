"""Faults between a caller and a store, drawn from a seed: the same seed gives the same faults."""

import random
from enum import Enum


class Fault(Enum):
    LOST_REQUEST = "the request was lost, so the caller gets no response"
    LOST_RESPONSE = "the store handled the request, but its response was lost"
    LATE = "the caller gave up, and the store handles the request later"
    REFUSED = "the store is too busy"
    SLOW = "the response is slow"


class Faults:
    """Draws a fault, or none, for each request. The arguments are probabilities; their sum is at most 1."""

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
        self.dice = random.Random(seed)  # noqa: S311 - repeatable random numbers
        self._chances = {
            Fault.LOST_REQUEST: lost_request,
            Fault.LOST_RESPONSE: lost_response,
            Fault.LATE: late,
            Fault.REFUSED: refused,
            Fault.SLOW: slow,
        }
        if sum(self._chances.values()) > 1:
            raise ValueError("the sum of the probabilities is more than 1")

    def draw(self) -> Fault | None:
        point = self.dice.random()
        for fault, chance in self._chances.items():
            if point < chance:
                return fault
            point -= chance
        return None
