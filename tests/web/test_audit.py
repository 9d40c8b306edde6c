"""The audit trail over HTTP: every route that changes something leaves a record, whoever calls and however."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from litestar.handlers import HTTPRouteHandler

from qo import wire
from qo.audit import PREFIX, AuditTrail, read_audit
from qo.audit.archive import VERIFIED
from qo.client import Client
from qo.client.changes_by_id import PAGE_SIZE
from qo.clock import system_clock
from qo.engine import Engine
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidTask, OutcomeUnknown, StorageError
from qo.model import ANY, Change, Filter, Status, archive, cancel, complete, reject, renew, replay
from qo.notes import CONTROL, TOKENS, WORKERS, WorkerNote
from qo.testing.samples import claim_one, new, task_id
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.settings import ServerLimits
from qo.web.http.tokens import create_token
from tests.web.serving import Served, in_process, served


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def one_server(secrets: dict[str, str]) -> Iterator[Served]:
    with served(MemoryEngine(), WebSettings(token_required=True)) as made:
        for name, scope in (("ops", Scope.ADMIN), ("native", Scope.ENGINE), ("reader", Scope.READ)):
            secrets[name] = made.run(create_token(made.qo_client.engine, name, [scope], now=0.0)).secret
        made.client.headers["authorization"] = f"Bearer {secrets['ops']}"
        yield made


@pytest.fixture
def api(one_server: Served) -> Served:
    """The same server with an empty store, but for its tokens."""

    async def forget() -> None:
        engine = one_server.qo_client.engine
        ids = [task.id for task in await engine.find(Filter(statuses=tuple(Status)), limit=1000)]
        await engine.apply([cancel(each) for each in ids])
        await engine.delete(ids)
        for note in await engine.notes(""):
            if note.name != TOKENS:
                await engine.drop_note(note.name)

    one_server.run(forget())
    return one_server


def trail(api: Served, **query: Any) -> list[dict[str, Any]]:
    answer = api.client.get("/api/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    actions: list[dict[str, Any]] = answer.json()["actions"]
    return actions[::-1]


def submit(api: Served, type: str = "t") -> str:
    made = api.post("/api/v1/tasks", {"task_type": type, "parameters": {}}).json()
    return str(made["task_id"])


def test_every_action_of_both_dialects_and_the_dashboard_is_recorded(api: Served, secrets: dict[str, str]) -> None:
    one, two, three, four = (submit(api) for _ in range(4))
    worker = WorkerNote(worker_id="w", started_at=0, last_heartbeat=0, capacity=1)
    api.run(api.qo_client.engine.write_note(WORKERS + "w", msgspec.json.encode(worker), expected=ANY))
    assert trail(api) == []  # submits are not in it
    calls: list[tuple[str, str, Any, Any]] = [
        ("DELETE", f"/api/v1/tasks/{one}", None, ("cancel", 1, [one], "")),
        ("DELETE", f"/api/v1/tasks/{one}", None, None),  # again: nothing changes
        ("POST", f"/api/v1/tasks/{one}/replay", None, ("replay", 1, [one], "")),
        ("POST", f"/api/tasks/{one}/cancel", None, ("cancel", 1, [one], "")),
        ("POST", f"/api/v1/tasks/{one}/archive", None, ("archive", 1, [one], "")),
        ("DELETE", f"/api/tasks/{one}", None, ("delete", 1, [one], "")),
        ("DELETE", f"/api/tasks/{one}", None, None),  # there is none any more
        ("POST", "/api/v1/dashboard/act", {"action": "cancel", "ids": [two, three]}, ("cancel", 2, [two, three], "")),
        ("POST", "/api/v1/tasks/replay", {"status": ["cancelled"], "type": ["t"], "limit": 1},
            ("replay", 1, [three], "status cancelled, type t")),
        ("POST", "/api/v1/dashboard/act", {"action": "cancel", "filter": {"type": ["t"], "text": "zebra"}}, None),
        ("POST", "/api/v1/dashboard/act", {"action": "cancel", "filter": {"queue": ["default"]}},
            ("cancel", 2, [four, three], "queue default")),
        ("POST", "/api/v1/dashboard/cleanup", {"older_than": 0, "status": ["cancelled"]},
            ("delete", 3, [], "older than 0 s, status cancelled")),
        ("DELETE", "/api/tasks?olderThan=2020-01-01", None, None),
        ("POST", "/api/v1/controls/pause", {"queue": "mail"}, ("pause", None, [], "queues mail")),
        ("POST", "/api/v1/controls/resume", {}, ("resume", None, [], "")),
        ("POST", "/api/v1/controls/rate-limit", {"tasks_per_second": 5, "type": "t"},
            ("limit", None, [], "5 per second, type t")),
        ("POST", "/api/v1/controls/max-types", {"max_types": 500}, ("limit", None, [], "500 types")),
        ("POST", "/api/v1/workers/w/drain", None, ("drain", None, [], "worker w")),
        ("POST", "/api/tasks/pause", None, ("pause", None, [], "")),
        ("POST", "/api/tasks/resume", None, ("resume", None, [], "")),
        ("POST", "/api/tasks/rate-limit", {"tasksPerSecond": 2}, ("limit", None, [], "2 per second")),
    ]  # fmt: skip
    expected = []
    for method, path, body, record in calls:
        api.client.request(method, path, json=body)
        expected += [] if record is None else [record]
    seen = trail(api)
    assert [(each["action"], each["number"], each["task_ids"], each["target"]) for each in seen] == expected
    assert {(each["actor"], each["who"], each["origin"]) for each in seen} == {("token", "ops", "127.0.0.1")}

    by_reader = {"authorization": f"Bearer {secrets['reader']}"}
    assert api.client.delete(f"/api/v1/tasks/{two}", headers=by_reader).status_code == 403
    assert api.client.get("/api/v1/audit", headers=by_reader).status_code == 403
    assert len(trail(api)) == len(expected)

    assert [each["action"] for each in trail(api, action=["archive", "drain"])] == ["archive", "drain"]
    assert len(trail(api, task=one.upper())) == 5 and not trail(api, who="nobody") and not trail(api, since=0)
    pages, after = [], ""
    while True:
        page = api.client.get("/api/v1/audit", params={"limit": 4, "after": after}).json()
        pages += page["actions"]
        if (after := page["next"]) is None:
            break
    assert pages == seen[::-1]
    for bad in ("nan~x", "x", "-1~", "1e999~a"):
        assert api.client.get("/api/v1/audit", params={"after": bad}).status_code == 400


def test_no_route_that_changes_something_is_left_out(api: Served) -> None:
    """Those that are not recorded are named here: they add tasks, run them, or belong to nobody."""
    left_out = {
        (method, route.path)
        for route in api.app.routes
        for handler in getattr(route, "route_handlers", ())
        if isinstance(handler, HTTPRouteHandler)
        for method in handler.http_methods - {"GET", "HEAD", "OPTIONS"}
        if handler.opt.get("public") or handler.opt.get("scope") in (Scope.SUBMIT, Scope.WORK, Scope.ENGINE)
    }
    assert left_out == {
        ("POST", "/api/v1/tasks"),
        ("POST", "/api/v1/tasks/bulk"),
        ("POST", "/api/tasks"),
        ("POST", "/internal/workers/register"),
        ("POST", "/internal/workers/{worker_id:str}/poll"),
        ("POST", "/internal/workers/{worker_id:str}/result"),
        ("POST", "/internal/workers/{worker_id:str}/heartbeat"),
        ("POST", "/internal/engine/{call:str}"),  # records its actions itself
        ("POST", "/ui/reports"),
    }


async def test_the_engine_port_records_actions_and_not_work(api: Served, secrets: dict[str, str]) -> None:
    engine = HttpEngine(address_of(api.url.replace("//", f"//:{secrets['native']}@")))
    await engine.open()
    try:
        await engine.add([new(0), new(1), new(2)])
        task = await claim_one(engine)
        await engine.apply([renew(task, 60.0)])
        await engine.apply([complete(task)])
        assert trail(api) == []
        rest = sorted({task_id(n) for n in range(3)} - {task.id})
        await engine.apply([cancel(rest[0]), cancel(rest[1])])
        await engine.apply([replay(rest[0]), archive(rest[1]), archive(task.id), replay(task_id(9))])
        await engine.delete([rest[1], task_id(9)])
        (waiting,) = await engine.find(Filter(statuses=(Status.PENDING,)), limit=9)
        await engine.apply([reject(waiting, "unknown type 't'")])
        client = Client(engine)
        await client.controls.pause(queues=["mail"])
        await client.controls.pause(queues=["mail"])  # changes nothing
        await client.controls.drain(["w"])
        control = await client.controls.read()
        left = msgspec.structs.replace(control, draining=frozenset())
        await engine.write_note(CONTROL, msgspec.json.encode(left), expected=ANY)  # as a worker leaves
        await engine.drop_note(CONTROL)
        seen = [(each["who"], each["action"], sorted(each["task_ids"]), each["target"]) for each in trail(api)]
        assert seen == [
            ("native", "cancel", rest, ""),
            ("native", "replay", [rest[0]], ""),
            ("native", "archive", sorted([rest[1], task.id]), ""),
            ("native", "delete", [rest[1]], ""),
            ("native", "reject", [rest[0]], ""),
            ("native", "controls", [], "paused_queues none to mail"),
            ("native", "controls", [], "draining none to w"),
            ("native", "controls", [], "paused_queues mail to none"),
        ]
        (first, *_) = await engine.notes(VERIFIED.inbox)  # it may look
        for name in (first.name, f"{PREFIX}2026-11-17", f"{VERIFIED.inbox}mine"):
            with pytest.raises(InvalidTask, match="by the server only"):
                await engine.write_note(name, b"{}", expected=ANY)
            with pytest.raises(InvalidTask, match="by the server only"):
                await engine.drop_note(name)
    finally:
        await engine.close()


def test_an_action_counts_as_done_although_its_record_is_lost(
    api: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = submit(api)

    async def refuse(*_: object, **__: object) -> str:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(api.qo_client.engine, "write_note", refuse)
        assert api.client.delete(f"/api/v1/tasks/{task}").status_code == 200
    assert api.client.get(f"/api/v1/tasks/{task}").json()["status"] == "cancelled"
    assert "not in the audit trail" in caplog.text and task in caplog.text


def replace_apply(patched: pytest.MonkeyPatch, api: Served, apply: Callable[..., Awaitable[list[bool]]]) -> None:
    """In the engine, and in the group commit of the client, which holds the engine's method."""
    patched.setattr(api.qo_client.engine, "apply", apply)
    patched.setattr(api.qo_client._applying, "_write", apply)


def test_a_write_whose_outcome_is_unknown_is_recorded_as_such(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [submit(api) for _ in range(2)]

    async def lose(*_: object) -> list[bool]:
        raise OutcomeUnknown("the answer was lost")

    async def refuse(*_: object) -> list[bool]:
        raise StorageError("away")

    with monkeypatch.context() as patched:
        replace_apply(patched, api, lose)
        assert api.post("/api/v1/dashboard/act", {"action": "cancel", "ids": tasks}).status_code == 503
        assert api.client.delete(f"/api/v1/tasks/{tasks[0]}").status_code == 503
        replace_apply(patched, api, refuse)
        assert api.post("/api/v1/dashboard/act", {"action": "cancel", "ids": tasks}).status_code == 503
    many, one = trail(api)
    assert (many["action"], many["outcome"]) == ("cancel", "unknown")
    assert (one["action"], one["outcome"], one["task_ids"]) == ("cancel", "unknown", tasks[:1])


class SilentEngine(MemoryEngine):
    """Takes what it is told, and does not answer before it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answer = await super().apply(changes)
        await self.answers.wait()
        return answer

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        answer = await super().delete(ids)
        await self.answers.wait()
        return answer


async def test_what_was_begun_is_recorded_although_its_time_is_up() -> None:
    engine = SilentEngine()
    await engine.open()
    await engine.add([new(n) for n in range(5)])
    await MemoryEngine.apply(engine, [cancel(task_id(n)) for n in range(3)])
    settings = WebSettings(limits=ServerLimits(request_timeout=0.5))
    port = {"content-type": wire.MEDIA_TYPE}
    async with in_process(Client(engine), settings) as client:
        answers = await asyncio.gather(
            client.post("/api/v1/dashboard/act", json={"action": "delete", "ids": [task_id(0)]}),
            client.post("/api/v1/dashboard/cleanup", json={"older_than": 0, "status": ["failed"]}),
            client.post("/internal/engine/delete", content=wire.encode([task_id(1)]), headers=port),
            client.delete(f"/api/v1/tasks/{task_id(3)}"),
            client.post(f"/api/tasks/{task_id(4)}/cancel"),
        )
        engine.answers.set()
        assert [each.status_code for each in answers] == [503, 200, 503, 503, 503]
    page = await read_audit(engine, now=system_clock(), limit=100)
    assert {(each.action, each.task_ids, each.outcome) for each in page.records} == {
        ("delete", (), "unknown"),
        ("delete", (task_id(1),), "unknown"),
        ("cancel", (task_id(3),), "unknown"),
        ("cancel", (task_id(4),), "unknown"),
    }


def test_what_was_done_is_recorded_although_the_store_goes_away(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Engine = api.qo_client.engine
    first, second = submit(api), submit(api)
    many = [new(n) for n in range(PAGE_SIZE + 1)]
    api.run(engine.add(many))
    api.run(engine.apply([cancel(task_id(n)) for n in range(len(many))] + [cancel(first)]))
    delete, apply, get = engine.delete, engine.apply, engine.get
    is_away = False

    async def go(ids: Sequence[str]) -> list[bool]:
        nonlocal is_away
        if is_away:
            raise StorageError("away")
        is_away = True
        return await delete(ids)

    async def change(changes: Sequence[Change]) -> list[bool]:
        nonlocal is_away
        is_away = True
        return await apply(changes)

    async def look(ids: Sequence[str]) -> Any:
        if is_away:
            raise StorageError("away")
        return await get(ids)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "delete", go)
        patched.setattr(engine, "get", look)
        replace_apply(patched, api, change)
        for method, path, body in (
            ("POST", f"/api/v1/tasks/{first}/archive", None),
            ("POST", f"/api/tasks/{second}/cancel", None),
            ("POST", f"/api/tasks/{second}/retry", None),
            ("POST", "/api/v1/dashboard/cleanup", {"older_than": 0, "status": ["cancelled"]}),
        ):
            is_away = False
            assert api.client.request(method, path, json=body).status_code == 503
    assert [(each["action"], each["number"], each["outcome"]) for each in trail(api)] == [
        ("archive", 1, "done"),
        ("cancel", 1, "done"),
        ("retry", 1, "done"),
        ("delete", PAGE_SIZE, "done"),
    ]


def test_only_this_machine_is_admitted_without_a_token() -> None:
    with served(MemoryEngine()) as api:
        api.post("/api/tasks/pause")
        (record,) = trail(api)
        assert (record["actor"], record["who"]) == ("anyone", "anyone")
        assert isinstance(api.app.state.action_recorder.trail, AuditTrail)
