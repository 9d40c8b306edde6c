"""schemathesis over our own description: whatever comes, no answer of 5xx.

By hand, for more cases than the suite has time for: python -m tests.web.fuzz [cases] [seconds]
"""

import sys
import time
from collections import Counter
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error

from qo.engines.memory import MemoryEngine
from tests.web.serving import served

SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}


class Fuzz:
    """Cases spread evenly over the operations, until there are enough or the time is up."""

    def __init__(self, url: str, *, cases: int, seconds: float, seed: int, at_a_time: int = 20) -> None:
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self._until, self._cases, self._seed, self._at_a_time = time.monotonic() + seconds, cases, seed, at_a_time
        self.statuses: Counter[int] = Counter()

    def run(self) -> None:
        found = [operation.ok() for operation in self.schema.get_all_operations()]  # type: ignore[union-attr]
        operations = [each for each in found if each.path != "/api/v1/events"]  # it never ends
        rounds = 0
        while sum(self.statuses.values()) < self._cases and time.monotonic() < self._until:
            for operation in operations:
                self._some(operation, self._seed + rounds)
            rounds += 1

    def _some(self, operation: Any, seed: int) -> None:
        for mode in modes_of(operation):

            @hypothesis.seed(seed)
            @hypothesis.settings(max_examples=self._at_a_time, **SETTINGS)  # type: ignore[arg-type]
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                if time.monotonic() > self._until:
                    return
                response = case.call()
                self.statuses[response.status_code] += 1
                case.validate_response(response, checks=[not_a_server_error])

            try:
                one()
            except (hypothesis.errors.Unsatisfiable, schemathesis.errors.InvalidSchema):
                continue  # nothing about this operation can be wrong


def modes_of(operation: Any) -> list[Any]:
    """Any text is a path: only a query or a body can be wrong, and looking for what cannot be there takes longest."""
    modes = schemathesis.GenerationMode
    return [modes.POSITIVE, modes.NEGATIVE] if operation.query or operation.body else [modes.POSITIVE]


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 900.0
    with served(MemoryEngine()) as api:
        fuzz = Fuzz(api.url, cases=cases, seconds=seconds, seed=int(time.time()))
        fuzz.run()
    total = sum(fuzz.statuses.values())
    print(f"{total} cases, answers {dict(sorted(fuzz.statuses.items()))}")  # noqa: T201 - the figures


if __name__ == "__main__":
    main()
