"""The scope `work`: a token's own workers, its own leases, its own queues, and nothing else."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qo.engines.memory import MemoryEngine
from qo.model import Status
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token, revoke_token
from tests.web.serving import Served, served

REQUEST_ID = "0a8ae6c1-1f4c-4c0b-9b8e-0c8e1d1f2a3b"


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    """One server; every test has queues and tokens of its own."""
    with served(MemoryEngine(), WebSettings(token_required=True)) as made:
        admin = made.run(create_token(made.qo_client.engine, "admin", [Scope.ADMIN], now=0.0)).secret
        made.client.headers["authorization"] = f"Bearer {admin}"
        yield made


class Holder:
    """A worker with a token of its own."""

    def __init__(self, api: Served, queue: str, *, register: bool = True, **limits: Any) -> None:
        self.api, self.name = api, f"{queue}-{id(self)}"
        made = api.run(create_token(api.qo_client.engine, self.name, [Scope.WORK], now=0.0, queues=[queue], **limits))
        self.headers = {"authorization": f"Bearer {made.secret}"}
        api.run(know_now(api))
        self.id = self.post("register", {}).json()["worker_id"] if register else ""

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.api.client.post(f"/internal/workers/{path}", json=body, headers=self.headers)

    def poll(self, **more: Any) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.post(f"{self.id}/poll", {"available_capacity": 9} | more).json()["tasks"]
        return tasks


async def know_now(api: Served) -> None:
    """Have the server read the tokens with its next request."""
    api.app.state.gate.forget()


def add(api: Served, queue: str, type: str = "t") -> str:
    return str(api.run(api.qo_client.enqueue(type, {"x": 1}, queue=queue)).id)


def status(api: Served, task_id: str) -> Status:
    (task,) = api.run(api.qo_client.engine.get([task_id]))
    assert task is not None
    return task.status


def test_a_work_token_gets_the_tasks_of_its_queues_and_types(api: Served):
    mine, _, _ = add(api, "own"), add(api, "own", "u"), add(api, "foreign")
    holder = Holder(api, "own", types=["t"])
    assert [task["task_id"] for task in holder.poll()] == [mine]
    assert holder.post("register", {"queues": ["own"], "types": ["t"]}).status_code == 200
    assert holder.post("register", {"queues": ["foreign"]}).status_code == 403
    assert holder.post("register", {"types": ["u"]}).status_code == 403


def test_a_worker_belongs_to_the_token_that_registered_it(api: Served):
    task_id = add(api, "shared")
    holder, other = Holder(api, "shared"), Holder(api, "shared")
    (task,) = holder.poll(request_id=REQUEST_ID)
    for path, body in (
        ("poll", {"available_capacity": 1, "request_id": REQUEST_ID}),
        ("heartbeat", {"status": "dead"}),
        ("result", {"task_id": task_id, "status": "completed", "lease_token": task["lease_token"]}),
    ):
        for caller in (other.headers, dict(api.client.headers)):  # not even an admin speaks for it
            answer = api.client.post(f"/internal/workers/{holder.id}/{path}", json=body, headers=caller)
            assert answer.status_code == 403 and task["lease_token"] not in answer.text, path
    api.app.state.pop("worker_api")  # another server knows whose it is, too
    assert other.post(f"{holder.id}/poll", {"available_capacity": 1}).status_code == 403
    assert status(api, task_id) is Status.RUNNING
    assert holder.post(f"{holder.id}/result", {"task_id": task_id, "status": "completed"}).status_code == 200


def test_a_worker_settles_only_what_it_holds(api: Served):
    """Also if it has seen the lease token of another, and not in a queue outside its token."""
    task_id, outside = add(api, "ours"), add(api, "theirs")
    holder, other, stranger = Holder(api, "ours"), Holder(api, "ours"), Holder(api, "theirs")
    (task,) = holder.poll()
    (foreign,) = stranger.poll()
    done = {"status": "completed", "result": "forged"}
    for lease in ({}, {"lease_token": task["lease_token"]}, {"lease_token": "guessed"}):
        refused = other.post(f"{other.id}/result", done | {"task_id": task_id} | lease)
        assert refused.status_code == 409 and "executing" not in refused.text
    for lease in ({}, {"lease_token": foreign["lease_token"]}):
        assert other.post(f"{other.id}/result", done | {"task_id": outside} | lease).status_code == 404
    assert other.post(f"{other.id}/heartbeat", {"current_tasks": [task_id]}).json()["lost"] == [task_id]
    assert status(api, task_id) is status(api, outside) is Status.RUNNING
    settled = holder.post(f"{holder.id}/result", done | {"task_id": task_id, "lease_token": task["lease_token"]})
    assert settled.json()["repeated"] is False


def test_a_poll_that_waits_ends_when_its_token_is_revoked(api: Served):
    api.run(api.qo_client.controls.pause(queues=["quiet"]))  # a poll looks at the controls every second
    api.app.state.pop("worker_api", None)
    holder = Holder(api, "quiet")
    api.run(revoke_token(api.qo_client.engine, holder.name))  # the server still remembers it, as while a poll waits
    answer = holder.post(f"{holder.id}/poll", {"available_capacity": 1, "wait": 20})
    assert answer.status_code == 401
