"""Requests about workflows, for the table of routes and scopes: as those in route_cases.py."""

from typing import Any

from qo.client import Client
from qo.testing.workflow_histories import planned
from tests.web.route_cases import BOARD, V1, Case, Made, Make, World


async def _list(_: World, __: str) -> Made:
    return f"{V1}/workflows", None


def _on_workflow(verb: str = "", body: Any = None, *, prefix: str = V1) -> Make:
    async def make(world: World, _: str) -> Made:
        client = Client(world.engine)
        made = await client.workflows.submit("mine", [planned()])
        if verb == "replay":
            await client.workflows.cancel(made.graph.id)
        return f"{prefix}/workflows/{made.graph.id}{verb and f'/{verb}'}", body

    return make


WORKFLOW_CASES = [
    Case(method="GET", path=f"{V1}/workflows", make=_list),
    Case(method="GET", path=f"{V1}/workflows/{{workflow_id}}", make=_on_workflow()),
    Case(method="GET", path=f"{BOARD}/workflows/{{workflow_id}}", make=_on_workflow(prefix=BOARD)),
    Case(method="POST", path=f"{V1}/workflows/{{workflow_id}}/cancel", make=_on_workflow("cancel")),
    Case(method="POST", path=f"{V1}/workflows/{{workflow_id}}/replay", make=_on_workflow("replay", {})),
]
