"""Every route with every kind of token, and with people of limited roles: who gets in, and what a limited caller sees
and changes outside its limits.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from litestar import Litestar

from qo import wire
from qo.client import Client
from qo.model import Filter, Status
from qo.testing import ManualClock
from qo.web import WebSettings, create_app, route_table
from qo.web.callers import Caller, Scope
from qo.web.http.access import Outside
from qo.web.http.tokens import create_token, revoke_token
from qo.web.oidc.sessions import CSRF_HEADER, SessionStore, csrf_token_of
from qo.web.oidc.settings import OidcSettings, parse_roles
from qo.web.route_table import RouteAccess, routes_of
from tests.web.route_cases import CASES, CONTROL, FOREIGN_WORKER, MINE, SECRET, TYPE, Case, World
from tests.web.workflow_cases import WORKFLOW_CASES

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
EVERY_CASE = [*CASES, *WORKFLOW_CASES]
LIMITS: dict[str, dict[str, Any]] = {
    "whole": {},
    "queue": {"queues": [MINE]},
    "type": {"types": [TYPE]},
    "elsewhere": {"queues": ["elsewhere"]},
}
PERSON = "session "  # how the secret of a person's session begins here
ROLES = parse_roles(
    [
        f"operate-queue=operate,submit;queue={MINE}",
        f"operate-type=operate;type={TYPE}",
        f"admin-queue=admin;queue={MINE}",
        "read-elsewhere=read;queue=elsewhere",
        "read-whole=read",
        f"work-both=operate;queue={MINE};type={TYPE}",
    ]
)
LOGIN = OidcSettings(issuer="http://127.0.0.1:9", client_id="qo", roles=ROLES.roles, limited_roles=ROLES.limited_roles)


class Bearer(NamedTuple):
    """A kind of token, or a person who logged in. Without a caller it is none that is let in anywhere."""

    name: str
    secret: str | None
    caller: Caller | None = None
    limits: str = "whole"


class Reply(NamedTuple):
    status: int
    body: str


async def call(app: Litestar, method: str, path: str, body: Any, secret: str | None) -> Reply:
    """One request, in process. A stream is left after its first message."""
    data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    kind = wire.MEDIA_TYPE if isinstance(body, bytes) else "application/json"
    parts = urlsplit(path)
    headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), (b"content-length", str(len(data)).encode())]
    if secret is not None and secret.startswith(PERSON):
        session = secret.removeprefix(PERSON)
        headers += [(b"cookie", f"qo-session={session}".encode())]
        headers += [(CSRF_HEADER.lower().encode(), csrf_token_of(session).encode())]
    elif secret is not None:
        headers.append((b"authorization", f"Bearer {secret}".encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "headers": headers,
    }
    scope |= {"query_string": parts.query.encode(), "client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    scope |= {"http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"}, "app": app}
    asked, left, sent = asyncio.Event(), asyncio.Event(), list[Any]()

    async def receive() -> dict[str, Any]:
        if asked.is_set():
            await left.wait()
            return {"type": "http.disconnect"}
        asked.set()
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            left.set()

    await app(scope, receive, send)  # type: ignore[arg-type]
    body_sent = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Reply(sent[0]["status"], body_sent.decode(errors="replace"))


class Site(NamedTuple):
    app: Litestar
    world: World
    bearers: list[Bearer]


@asynccontextmanager
async def new_site() -> AsyncIterator[Site]:
    """The application over a store in memory, with a token of each kind."""
    world, clock = World(), ManualClock()
    client = Client(world.engine, clock=clock)
    app = create_app(client, settings=WebSettings(oidc=LOGIN), clock=clock)
    async with app.lifespan():
        bearers = [Bearer("none", None), Bearer("unknown", "qo_" + "0" * 64)]
        revoked = await create_token(world.engine, "revoked", [Scope.ADMIN], now=clock())
        expired = await create_token(world.engine, "expired", [Scope.ADMIN], now=clock() - 9.0, lifetime=9.0)
        await revoke_token(world.engine, "revoked")
        bearers += [Bearer("revoked", revoked.secret), Bearer("expired", expired.secret)]
        for scope in Scope:
            for limits, named in LIMITS.items():
                if scope is not Scope.ENGINE or not named:
                    made = await create_token(world.engine, f"{scope}-{limits}", [scope], now=clock(), **named)
                    bearers.append(Bearer(made.token.name, made.secret, made.token.caller(), limits))
        bearers += [await person(world, clock, group) for group in ROLES.limited_roles if group != "work-both"]
        yield Site(app, world, bearers)


async def person(world: World, clock: ManualClock, *groups: str) -> Bearer:
    """Somebody who logged in. The limits are those of the last group."""
    store = SessionStore(world.engine, clock, LOGIN)
    opened = await store.open(subject="s", name="person", groups=groups, lifetime=3600)
    return Bearer(
        f"person-{'-'.join(groups)}",
        PERSON + opened.secret,
        opened.session.caller(LOGIN),
        groups[-1].rpartition("-")[2],
    )


def expected(route: RouteAccess, case: Case, bearer: Bearer) -> tuple[int, ...]:
    """The statuses this may be answered with."""
    caller = bearer.caller
    if caller is None:
        return (401,)
    if not route.admits(caller) or (case.scope is not None and caller.within(case.scope) is None):
        return (403,)
    if bearer.limits == "whole" or bearer.limits in case.inside:
        return (200, 201, 202, 204)
    return {Outside.NOT_FOUND: (404,), Outside.REFUSED: (403,)}.get(route.outside or Outside.REFUSED, (200,))


async def test_each_route_answers_each_kind_of_token_as_the_table_says():
    """And a limited token is told nothing of what lies outside, and changes nothing there."""
    wrong: list[str] = []
    async with new_site() as site:
        routes = {(route.method, route.path): route for route in routes_of(site.app) if route.scope is not None}
        assert {(case.method, case.path) for case in EVERY_CASE} == routes.keys(), "add it to tests/web/route_cases.py"
        for case in sorted(EVERY_CASE, key=lambda case: case.path == "/auth/logout"):  # that last: it ends sessions
            for bearer in site.bearers:
                wrong += await _check(site, routes[case.method, case.path], case, bearer)
    assert not wrong, "\n".join(wrong)


async def _check(site: Site, route: RouteAccess, case: Case, bearer: Bearer) -> list[str]:
    app, world, _ = site
    await world.rebuild()
    path, body = await case.make(world, bearer.caller.id if bearer.caller else "")
    before = await world.versions()
    guarded = {} if bearer.limits == "whole" else await world.versions(*_foreign(bearer))
    reply = await call(app, case.method, path, body, bearer.secret)
    about = f"{bearer.name}: {case.method} {path} {body!r:.80} was answered {reply.status} {reply.body:.200}"
    wrong = []
    if reply.status not in expected(route, case, bearer):
        wrong.append(f"not one of {expected(route, case, bearer)}: {about}")
    refused = reply.status >= 400
    if refused and (await world.versions() != before or await world.control() != CONTROL):
        wrong.append(f"refused, and it changed something: {about}")
    if guarded and await world.versions(*_foreign(bearer)) != guarded:
        wrong.append(f"changed what is not its own: {about}")
    wrong += [f"{word!r} was told: {about}" for word in _untold(route, bearer, refused) if word in reply.body]
    return wrong


def _foreign(bearer: Bearer) -> tuple[str, ...]:
    return (SECRET, MINE) if bearer.limits == "elsewhere" else (SECRET,)


def _untold(route: RouteAccess, bearer: Bearer, refused: bool) -> list[str]:
    """A refusal may repeat what was asked."""
    if bearer.caller is None or (refused and bearer.limits != "whole"):
        return ["secret-", "mine-payload"]
    words = {"whole": [], "queue": ["secret-"], "type": ["secret-"], "elsewhere": ["secret-", "mine-"]}[bearer.limits]
    return words if route.scope is Scope.ENGINE else [*words, "secret-lease", "mine-lease"]


async def test_every_kind_of_token_is_refused_for_the_worker_of_another():
    async with new_site() as site:
        for bearer in site.bearers:
            path, body = await FOREIGN_WORKER.make(site.world, "")
            reply = await call(site.app, "POST", path, body, bearer.secret)
            assert reply.status == (401 if bearer.caller is None else 403), bearer.name


async def test_a_person_may_do_what_any_of_the_groups_may_and_where_it_may():
    """Looks everywhere, and acts in one queue; the limits of two groups are joined where lists can say it."""
    async with new_site() as site:
        world, clock = site.world, ManualClock()
        await world.rebuild()
        (foreign,) = await world.engine.find(Filter(statuses=(Status.PENDING,), queues=(SECRET,)), limit=9)
        mixed = await person(world, clock, "read-whole", "admin-queue")
        both = await person(world, clock, "operate-queue", "operate-type")
        exact = await person(world, clock, "operate-queue", "work-both")

        async def answer(bearer: Bearer, method: str, path: str, body: Any = None) -> Reply:
            return await call(site.app, method, path, body, bearer.secret)

        seen = await answer(mixed, "GET", f"/api/v1/tasks/{foreign.id}")
        assert seen.status == 200 and "secret-" in seen.body
        known = msgspec.json.decode((await answer(mixed, "GET", "/api/v1/dashboard/session")).body)
        assert (known["scopes"], known["queues"]) == (["admin", "read"], [])
        assert known["can"]["delete"] and not known["can"]["audit"]
        mine = await world.add("pending")
        for bearer, path in ((mixed, "/api/v1/tasks"), (exact, "/api/v1/tasks")):
            assert (await answer(bearer, "DELETE", f"{path}/{foreign.id}")).status == 404
        acted = await answer(mixed, "POST", "/api/v1/dashboard/act", {"action": "cancel", "ids": [mine, foreign.id]})
        assert acted.status == 200 and msgspec.json.decode(acted.body)["done"] == 1
        acted = await answer(mixed, "POST", "/api/v1/dashboard/act", {"action": "delete", "ids": [mine, foreign.id]})
        assert acted.status == 200 and msgspec.json.decode(acted.body)["done"] == 1
        assert (await answer(mixed, "POST", "/api/v1/controls/pause", {})).status == 403
        assert (await answer(mixed, "POST", "/api/v1/controls/pause", {"queue": MINE})).status == 200
        assert (await answer(mixed, "GET", "/api/v1/audit")).status == 403
        assert await world.engine.get([foreign.id]) == [foreign]
        # Queue or type cannot be said with one list of each: the group named first counts.
        elsewhere = await world.add("pending", queue=SECRET)
        assert (await answer(both, "GET", f"/api/v1/tasks/{elsewhere}")).status == 404
        other_type = await world.add("pending", type="other")
        assert (await answer(exact, "DELETE", f"/api/v1/tasks/{other_type}")).status == 200  # the wider one counts


async def test_a_role_that_is_taken_from_a_group_ends_its_sessions():
    async with new_site() as site:
        clock = ManualClock()
        opened = await SessionStore(site.world.engine, clock, LOGIN).open(
            subject="s", name="n", groups=["read-whole", "admin-queue"], lifetime=60
        )
        for kept, scopes in ((("read-whole",), {Scope.READ}), ((), None)):
            changed = msgspec.structs.replace(
                LOGIN, roles={group: LOGIN.roles[group] for group in kept}, limited_roles={}
            )
            caller = await SessionStore(site.world.engine, clock, changed).caller(opened.secret)
            assert (None if caller is None else caller.scopes) == scopes and not (caller and caller.limited_roles)


async def test_public_routes_need_no_token():
    async with new_site() as site:
        public = [route for route in routes_of(site.app) if route.scope is None and "{" not in route.path]
        for route in public:
            for bearer in site.bearers[:5]:
                reply = await call(site.app, route.method, route.path, None, bearer.secret)
                assert reply.status < 400, (route.path, bearer.name)


SHOWN = ("/api/v1/tasks", "/api/v1/dashboard/overview", "/api/tasks", "/api/v1/controls", "/api/v1/workers")


async def test_without_limits_everything_is_shown():
    """Else the first test would pass with a server that shows nothing."""
    async with new_site() as site:
        await site.world.rebuild()
        for path in SHOWN:
            assert "secret-" in (await ask(site, "read-whole", path))[1], path


async def test_counts_are_of_what_is_inside():
    """A store with one task inside and four outside."""
    async with new_site() as site:
        await site.world.rebuild()
        await site.world.add("pending")
        for limits, pending, everything in (("whole", 2, 5), ("queue", 1, 1), ("type", 1, 1), ("elsewhere", 0, 0)):
            reader = f"read-{limits}"
            stats = msgspec.json.decode((await ask(site, reader, "/api/v1/queue/stats"))[1])
            assert sum(level["depth"] for level in stats["queues"].values()) == pending
            assert stats["workers"]["dead"] == (limits == "whole")
            overview = msgspec.json.decode((await ask(site, reader, "/api/v1/dashboard/overview"))[1])
            assert sum(overview["counts"].values()) == everything
            assert sum(line["depth"] for line in overview["priorities"]) == pending
            assert len(overview["failures"]) == (limits == "whole")
            board = msgspec.json.decode((await ask(site, reader, "/api/v1/dashboard/tasks"))[1])
            assert board["total"] == len(board["tasks"]) == everything
            managed = msgspec.json.decode((await ask(site, reader, "/api/tasks"))[1])
            assert managed["total"] == len(managed["tasks"]) == everything
            totals = msgspec.json.decode((await ask(site, reader, "/api/tasks/stats"))[1])
            assert totals["pending"] == pending and bool(totals["byType"]) == bool(everything)


async def ask(site: Site, name: str, path: str) -> Reply:
    bearer = next(bearer for bearer in site.bearers if bearer.name == name)
    return await call(site.app, "GET", path, None, bearer.secret)


def test_the_page_in_the_docs_is_the_one_the_code_draws() -> None:
    hint = "docs/access.md is out of date: python -m qo.web.route_table > docs/access.md"
    assert PAGE.read_text(encoding="utf-8") == route_table.render(routes_of(create_app("memory://"))), hint
