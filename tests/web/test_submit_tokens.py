"""The scope `submit`: a producer adds tasks, and learns nothing of those of others."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from qo.engines.memory import MemoryEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token, revoke_token
from tests.web.serving import Served, served

Submit = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served(MemoryEngine(), WebSettings(token_required=True)) as made:
        yield made


def producer(api: Served, name: str, *scopes: Scope, **limits: Any) -> Submit:
    made = api.run(create_token(api.qo_client.engine, name, scopes or [Scope.SUBMIT], now=0.0, **limits))
    api.app.state.gate.forget()

    def submit(key: str, *, path: str = "/api/v1/tasks", bulk: bool = False, **given: Any) -> httpx.Response:
        task = {"task_type": "t", "idempotency_key": key, "parameters": {"n": 1}} | given
        headers = {"authorization": f"Bearer {made.secret}"}
        body = {"tasks": [task]} if bulk else task
        return api.client.post(f"{path}/bulk" if bulk else path, json=body, headers=headers)

    return submit


def shape(answer: httpx.Response) -> tuple[int, Any]:
    """What an answer says, but for the id and the place of the new task."""
    said = answer.json()
    for receipt in said.get("tasks", [said]):
        assert receipt.pop("task_id") and (receipt.pop("queue_position", 1) or 0) >= 0
    return answer.status_code, said


@pytest.mark.parametrize("bulk", [False, True], ids=["one", "bulk"])
def test_guessing_the_keys_of_others_reveals_nothing(api: Served, bulk: bool):
    """Neither that a task exists, nor what became of it, nor what its payload is."""
    owner, guesser = producer(api, f"owner-{bulk}"), producer(api, f"guesser-{bulk}")
    native = api.run(api.qo_client.enqueue("t", {"n": 1}, idempotency_key=f"native-{bulk}"))
    theirs = owner(f"taken-{bulk}").json()["task_id"]
    api.complete(type="t")
    unused = shape(guesser(f"unused-{bulk}", bulk=bulk))
    for key in (f"taken-{bulk}", f"native-{bulk}"):
        guessed = guesser(key, bulk=bulk)
        assert theirs not in guessed.text and native.id not in guessed.text
        assert shape(guessed) == unused, key
        again = producer(api, f"again-{key}")(key, bulk=bulk, parameters={"n": 2})
        assert shape(again) == unused, key


def test_keys_hold_for_the_token_that_used_them(api: Served):
    submit = producer(api, "steady")
    first = submit("k")
    assert submit("k").json()["task_id"] == first.json()["task_id"] and submit("k").status_code == 200
    assert submit("k", parameters={"n": 2}).status_code == 409
    api.run(revoke_token(api.qo_client.engine, "steady"))
    renewed = producer(api, "steady")  # a new token for the same purpose
    assert renewed("k").json()["task_id"] == first.json()["task_id"]


def test_keys_are_shared_by_all_who_may_read(api: Served):
    task = api.run(api.qo_client.enqueue("t", {"n": 1}, idempotency_key="shared"))
    for name, limits in (("reader", {}), ("limited-reader", {"queues": ["default"]})):
        found = producer(api, name, Scope.SUBMIT, Scope.READ, **limits)("shared")
        assert (found.status_code, found.json()["task_id"]) == (200, task.id)


def test_a_limited_token_does_not_see_how_many_tasks_wait_elsewhere(api: Served):
    limited = producer(api, "limited", queues=["own"])
    assert limited("k", queue="own").json()["queue_position"] is None
    refused = limited("k", queue="default")
    assert refused.status_code == 403 and "default" in refused.json()["error"]
    assert limited("k", queue="default", bulk=True).status_code == 403
