"""Schedules over /api/v1, and in the audit trail whoever changes them."""

import pytest

from qo.audit import read_audit
from qo.client import Client, connect
from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.model import ANY
from qo.monitor.scheduler import Scheduler
from qo.store_time import StoreTime
from qo.testing import ManualClock
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.web.serving import in_process, served

V1 = "/api/v1/schedules"
SYNC = {"type": "sync", "payload": {"customer": "acme"}, "every": 60}


@pytest.fixture
def client() -> Client:
    return Client(MemoryEngine())


async def test_a_schedule_is_added_read_paused_resumed_run_and_removed(client: Client) -> None:
    async with in_process(client) as api:
        added = (await api.put(f"{V1}/acme", json=SYNC)).json()
        assert (added["status"], added["payload"], added["every"]) == ("active", {"customer": "acme"}, 60.0)
        assert len(added["next_fires"]) == 5 and added["next_fires"][0].endswith("Z")
        changed = await api.put(f"{V1}/acme", json={"type": "sync", "cron": "0 3 * * *", "timezone": "Europe/Berlin"})
        assert changed.json()["cron"] == "0 3 * * *"
        assert (await api.post(f"{V1}/acme/pause")).json()["status"] == "paused"
        run = (await api.post(f"{V1}/acme/run")).json()
        shown = (await api.get(f"{V1}/acme")).json()
        assert [(each["task_id"], each["task_status"]) for each in shown["recent"]] == [(run["task_id"], "pending")]
        assert (await api.post(f"{V1}/acme/resume")).json()["status"] == "active"
        assert [each["name"] for each in (await api.get(V1)).json()["schedules"]] == ["acme"]
        assert (await api.delete(f"{V1}/acme")).json() == {"name": "acme", "removed": True}
        assert (await api.get(f"{V1}/acme")).status_code == 404
        actions = (await read_audit(client.engine, now=system_clock(), limit=20)).records
        assert {each.target for each in actions} == {"schedule acme"}
        assert [each.action.removeprefix("schedule.") for each in reversed(actions)] == [
            "add", "add", "pause", "run", "resume", "remove",
        ]  # fmt: skip
        assert actions[2].task_ids == (run["task_id"],)


async def test_a_schedule_at_the_end_of_the_calendar_is_shown_with_its_only_fire_time(client: Client) -> None:
    async with in_process(client) as api:
        added = await api.put(f"{V1}/late", json={"type": "sync", "every": 3600, "start_at": "9999-12-31T23:59:59Z"})
        assert (added.status_code, added.json().get("next_fires")) == (200, ["9999-12-31T23:59:59.000Z"])
        assert (await api.get(V1)).status_code == 200


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cron": "99 * * * *", "every": None}, "cron"),
        ({"every": 0.5}, "every"),
        ({"every": -1}, "every"),
        ({"timezone": "Mars"}, "timezone"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": "queue"}, "overlap"),
        ({"start_at": "tomorrow"}, "start_at"),
        ({"priority": 10}, "priority"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_option_is_refused_by_name(client: Client, options: dict[str, object], field: str) -> None:
    async with in_process(client) as api:
        answer = await api.put(f"{V1}/acme", json=SYNC | options)
        assert answer.status_code == 400 and field in answer.json()["error"] + str(answer.json().get("field"))


@pytest.mark.parametrize("name", ["nobody", "-", "%00", "a%2Fb", "x" * 200])
async def test_an_unknown_or_impossible_name_is_not_found(client: Client, name: str) -> None:
    async with in_process(client) as api:
        for answer in (
            await api.get(f"{V1}/{name}"),
            await api.post(f"{V1}/{name}/run"),
            await api.delete(f"{V1}/{name}"),
        ):
            assert answer.status_code in {400, 404}
        assert (await api.put(f"{V1}/-", json=SYNC)).status_code == 400


async def test_a_limited_token_cannot_take_the_name_of_a_schedule_of_others(client: Client) -> None:
    await client.schedules.add("payroll", task="pay", every=60, options={"queue": "secret"})
    token = await create_token(client.engine, "limited", [Scope.ADMIN], queues=["mine"], now=0.0)
    async with in_process(client, WebSettings(token_required=True)) as http:
        http.headers["authorization"] = f"Bearer {token.secret}"
        answer = await http.put(f"{V1}/payroll", json=SYNC | {"queue": "mine"})
        assert answer.status_code == 403
        assert (await http.get(f"{V1}/payroll")).status_code == 404
        assert (await http.delete(f"{V1}/payroll")).status_code == 404
        assert (await http.put(f"{V1}/own", json=SYNC | {"queue": "mine"})).status_code == 200
    assert (await client.schedules.get("payroll")).type == "pay"


async def test_a_damaged_schedule_hides_no_other_and_can_be_removed(client: Client) -> None:
    async with in_process(client) as api:
        await api.put(f"{V1}/good", json=SYNC)
        await client.engine.write_note("schedules/bad", b'{"half', expected=ANY)
        assert [each["name"] for each in (await api.get(V1)).json()["schedules"]] == ["good"]
        assert (await api.get(f"{V1}/bad")).status_code in {500, 503}
        assert (await api.delete(f"{V1}/bad")).status_code == 200


def test_changes_by_a_client_of_the_engine_port_are_in_the_audit_trail_and_fires_are_not() -> None:
    clock = ManualClock()
    with served(MemoryEngine(clock), clock=clock) as made:

        async def change() -> list[str]:
            async with connect(made.url) as remote:
                await remote.schedules.add("acme", task="sync", every=60)
                await remote.schedules.pause("acme")
                await remote.schedules.resume("acme")
                clock.advance(61.0)
                store_time = StoreTime(remote.engine, clock, clock)
                await Scheduler(remote, clock=store_time, elapsed=clock).check()
                fired = (await remote.schedules.get("acme")).recent
                await remote.schedules.run("acme")
                await remote.schedules.remove("acme")
                assert len(fired) == 1
            actions = (await read_audit(made.qo_client.engine, now=clock(), limit=20)).records
            return sorted(each.action for each in actions)

        assert made.run(change()) == [
            "schedule.add", "schedule.pause", "schedule.remove", "schedule.resume", "schedule.run",
        ]  # fmt: skip
