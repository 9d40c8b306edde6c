"""schemathesis over our own description, with tokens of every kind: whatever comes, no answer of 5xx."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error

from qo.client import Client
from qo.clock import system_clock
from qo.engine import Engine
from qo.testing.samples import new, task_id
from qo.web.callers import Scope
from qo.web.http.tokens import create_token

SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}
NO_END = "/api/v1/events"
MAX_ANSWER_TIME = 60.0  # seconds; the machine may be busy
# The admin's comes often: only it gets past every check of scopes.
TOKENS: dict[str, dict[str, Any]] = {
    "admin": {"scopes": [Scope.ADMIN]},
    "all": {"scopes": [scope for scope in Scope if scope is not Scope.ENGINE]},
    "operate": {"scopes": [Scope.OPERATE], "queues": ["default"]},
    "submit": {"scopes": [Scope.SUBMIT], "types": ["t"]},
    "work": {"scopes": [Scope.WORK]},
    "read": {"scopes": [Scope.READ], "queues": ["default"], "types": ["t"]},
}


async def make_tokens(engine: Engine) -> list[str]:
    made = [await create_token(engine, name, now=system_clock(), **token) for name, token in TOKENS.items()]
    return [each.secret for each in made]


async def make_things(engine: Engine) -> dict[str, list[str]]:
    """Tasks, a batch and a schedule; their names by the path parameter that takes them."""
    ids = [task_id(n) for n in range(8)]
    await engine.add([new(n, queue="default", type="t", batch="b", delay=60.0 * (n % 2)) for n in range(len(ids))])
    client = Client(engine)
    await client.schedules.add("nightly", task=client.new_task("t", b"{}"), cron="0 3 * * *")
    return {"task_id": ids, "name": ["nightly", "b"]}


class Fuzz:
    """Cases spread evenly over the operations: every `of_parts`-th of them, from the one at `part` on."""

    def __init__(
        self,
        url: str,
        tokens: Sequence[str],
        *,
        seed: int,
        part: int = 0,
        of_parts: int = 1,
        things: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {tokens[0]}"}
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers, timeout=MAX_ANSWER_TIME)
        found = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
        self._operations = [each for each in found if each.path != NO_END][part::of_parts]
        turns = [tokens[0] if turn % 2 else tokens[turn // 2 % len(tokens)] for turn in range(2 * len(tokens))]
        self._tokens = itertools.cycle(turns)
        self._seed = seed
        # Nothing has a name that is drawn, so what exists takes the place of most drawn names.
        self._things = {name: itertools.cycle([None, *known]) for name, known in (things or {}).items()}
        self.statuses: Counter[int] = Counter()

    def run(self, cases: int) -> None:
        """Send up to `cases` requests for each operation and mode. A strategy is built once: that takes longest."""
        for operation in self._operations:
            for mode in modes_of(operation):
                self._some(operation, mode, cases)

    def _some(self, operation: Any, mode: Any, number: int) -> None:
        @hypothesis.seed(self._seed)
        @hypothesis.settings(max_examples=number, **SETTINGS)  # type: ignore[arg-type]
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            case.headers = (case.headers or {}) | {"Authorization": f"Bearer {next(self._tokens)}"}
            for name in (case.path_parameters or {}).keys() & self._things.keys():
                case.path_parameters[name] = next(self._things[name]) or case.path_parameters[name]
            response = case.call(timeout=MAX_ANSWER_TIME)
            self.statuses[response.status_code] += 1
            case.validate_response(response, checks=[not_a_server_error])

        try:
            one()
        except (hypothesis.errors.Unsatisfiable, schemathesis.errors.InvalidSchema):
            return  # nothing about this operation can be wrong


def modes_of(operation: Any) -> list[Any]:
    """Any text is a path: only a query or a body can be wrong, and looking for what cannot be there takes longest."""
    modes = schemathesis.GenerationMode
    return [modes.POSITIVE, modes.NEGATIVE] if operation.query or operation.body else [modes.POSITIVE]
