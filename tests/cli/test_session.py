"""`qo session`: who is logged in, and logging people out."""

import asyncio
import json
from typing import Any

from qo.audit import cli_user
from qo.client import connect
from qo.clock import system_clock
from qo.web.callers import Scope
from qo.web.oidc.sessions import SessionStore
from qo.web.oidc.settings import OidcSettings
from tests.cli.conftest import Qo

SETTINGS = OidcSettings(
    issuer="https://login.example", client_id="qo", roles={group: frozenset({Scope.READ}) for group in ("ops", "staff")}
)


def log_in(call: Qo, *people: tuple[str, str]) -> None:
    async def work() -> None:
        async with connect(call.url) as client:
            store = SessionStore(client.engine, system_clock, SETTINGS)
            for name, group in people:
                await store.open(subject=f"id of {name}", name=name, groups=[group], lifetime=3600)

    asyncio.run(work())


def test_people_are_listed_and_logged_out_by_name_session_or_group(call: Qo) -> None:
    call.submit()
    assert "no sessions" in call("session", "list").stdout
    log_in(call, ("ann", "ops"), ("ann", "ops"), ("bob", "staff"), ("cat", "staff"), ("\x1b[31mdan", "ops"))
    listed = call.json("session", "list")
    assert [(each["name"], each["groups"]) for each in listed[:3]] == [
        ("ann", ["ops"]), ("ann", ["ops"]), ("bob", ["staff"])
    ]  # fmt: skip
    assert "digest" not in json.dumps(listed) and "\x1b[31m" not in call("session", "list").stdout

    def left() -> list[str]:
        return [each["name"][-3:] for each in call.json("session", "list")]

    assert "ended 1 session of ann" in call("session", "end", listed[0]["id"]).stdout
    assert left() == ["ann", "bob", "cat", "dan"]
    ended: list[dict[str, Any]] = call.json("session", "end", "--group", "staff")
    assert [each["name"] for each in ended] == ["bob", "cat"] and left() == ["ann", "dan"]
    assert "qo session list" in call("session", "end", "bob", code=3).stderr
    assert "--all" in call("session", "end", code=2).stderr
    call("session", "end", "id of ann")
    call("session", "end", "--all")
    assert left() == []
    records = call.json("audit", "--action", "session.end")["records"][::-1]
    assert [each["target"] for each in records] == ["ann", "bob, cat", "ann", "\x1b[31mdan"]
    assert {each["who"] for each in records} == {cli_user()}


def test_a_token_must_be_valid_for_a_time_and_exist_to_be_revoked(call: Qo) -> None:
    refused = call.error("token", "create", "--name", "n", "--scopes", "read", "--expires", "0", code=2)
    assert refused["error"].startswith("expires: ")
    call("token", "create", "--name", "n", "--scopes", "read", "--expires", "1s")
    assert "no token called 'm'" in call.error("token", "revoke", "m", code=3)["error"]
