"""Errors of the store: a status and a sentence without details, and health."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from qo import wire
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.engines.memory import MemoryEngine
from qo.errors import Conflict, LeaseLost, ObjectTooLarge, OutcomeUnknown, StorageError, is_size_refusal
from qo.model import Added, Counts, NewTask, Note
from qo.testing.samples import new
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.web.serving import Served, served


def _too_large(*, is_partial: bool) -> StorageError:
    error = ObjectTooLarge("s3://secret refuses a record")
    if not is_partial:
        return error
    unknown = OutcomeUnknown("1 of 2 items are stored")
    unknown.__cause__ = error
    return unknown


class Broken(MemoryEngine):
    """A store that is not itself today."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:  # noqa: ARG002
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StorageError("postgresql://user:secret@host is away"), 503),
        (OutcomeUnknown("the answer was lost: secret"), 503),
        (_too_large(is_partial=False), 413),
        (_too_large(is_partial=True), 413),
        (LeaseLost("not yours"), 409),
        (Conflict("someone was faster"), 409),
        (RuntimeError("a secret"), 500),
    ],
)
def test_errors_of_the_store_are_reported_without_details(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "qo.web"), served(Broken(error)) as api:
        answer = api.post("/api/v1/tasks", {"task_type": "t"})
        assert answer.status_code == status
        assert "secret" not in answer.text and "Traceback" not in answer.text
        assert (answer.headers.get("retry-after") == "1") is (status == 503)
        assert (str(error) in caplog.text) is (status in {413, 500, 503})


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_client_of_the_engine_port_is_told_that_a_task_is_too_large_for_the_store(*, is_partial: bool):
    """Not that the store is away: it would repeat the request for ever."""

    async def add(url: str) -> None:
        engine = HttpEngine(address_of(url))
        await engine.open()
        try:
            await engine.add([new()])
        finally:
            await engine.close()

    expected = OutcomeUnknown if is_partial else ObjectTooLarge
    with served(Broken(_too_large(is_partial=is_partial))) as api, pytest.raises(expected) as raised:
        asyncio.run(add(api.url))
    assert is_size_refusal(raised.value)


class Absent(MemoryEngine):
    async def read_note(self, name: str) -> Note | None:
        if name == "control":
            raise StorageError("gone")
        return await super().read_note(name)


@pytest.mark.parametrize("error", [StorageError, OutcomeUnknown])
def test_the_engine_port_names_the_store_only_to_callers_that_may_read(error: type[StorageError]):
    """Who calls is not even known while the tokens cannot be read."""
    engine = _Unwell(error("postgresql://qo@db.internal/queue is away"))
    headers = {"content-type": wire.MEDIA_TYPE}
    with served(engine, WebSettings(token_required=True)) as api:
        made = {
            scopes: api.run(create_token(engine, "-".join(scopes), scopes, now=0.0))
            for scopes in ((Scope.ENGINE,), (Scope.ENGINE, Scope.READ))
        }
        assert api.client.get("/api/v1/tasks").status_code == 401  # the tokens are known for a second
        for scopes, one in made.items():
            headers["authorization"] = f"Bearer {one.secret}"
            answer = api.client.post("/internal/engine/count", headers=headers, content=wire.encode(None))
            told = wire.error_of(answer.content)
            assert answer.status_code == 503 and type(told) is error and answer.headers["retry-after"] == "1"
            assert ("db.internal" in str(told)) is (Scope.READ in scopes)
    engine.is_unread = True
    with served(engine, WebSettings(token_required=True)) as api:
        del headers["authorization"]
        answer = api.client.post("/internal/engine/count", headers=headers, content=wire.encode(None))
        assert answer.status_code == 503 and b"db.internal" not in answer.content


class _Unwell(MemoryEngine):
    """A store that is away, for its tokens too once `is_unread`."""

    is_unread = False

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self._error = error

    async def count(self, batch: str | None = None) -> Counts:  # noqa: ARG002 - fails for all
        raise self._error

    async def read_note(self, name: str) -> Note | None:
        if self.is_unread:
            raise self._error
        return await super().read_note(name)


def test_health_is_the_loops_and_readiness_the_stores(one_server: Served):
    assert one_server.client.get("/healthz").json()["ok"] is True
    assert one_server.client.get("/readyz").json()["ok"] is True
    with served(Absent()) as api:
        assert api.client.get("/healthz").status_code == 200
        answer = api.client.get("/readyz")
        assert answer.status_code == 503 and answer.json() == {"ok": False, "reason": "the store is unreachable"}
