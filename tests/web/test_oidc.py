"""Logging in through a real provider: who gets in, who does not, and what a session may do."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OctKey

from qo.cli.run_server import oidc_settings
from qo.client import Client
from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting
from qo.web import WebSettings, create_app
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from qo.web.oidc.login import LoginAttempt, LoginRefused, LoginService, attempt_in, new_attempt
from qo.web.oidc.provider import MAX_LOGINS, OidcProvider
from qo.web.oidc.sessions import MAX_SESSIONS, SESSIONS, SessionStore
from qo.web.oidc.settings import OidcSettings, check_oidc, parse_roles
from tests.servers.oidc import LoginPlace
from tests.web.serving import Served, in_process, served

ROLES = {"ops": frozenset({Scope.OPERATE}), "staff": frozenset({Scope.READ}), "boss": frozenset({Scope.ADMIN})}
LIFETIME = 3600.0


class Watch:
    """The server's clock, which a test may turn."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return system_clock() + self.ahead


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def oidc(provider: LoginPlace, **more: Any) -> OidcSettings:
    given: dict[str, Any] = {
        "client_id": "qo",
        "client_secret": "s3cret",
        "roles": ROLES,
        "session_lifetime": LIFETIME,
    } | more
    return OidcSettings(issuer=given.pop("issuer", provider.issuer), **given)


@pytest.fixture(scope="module")
def one(oidc_provider: LoginPlace, watch: Watch) -> Iterator[Served]:
    oidc_provider.make_user("ann@example.com", groups=["ops", "others"])
    oidc_provider.make_user("bob@example.com", groups=["others"])
    oidc_provider.make_user("cat@example.com")
    oidc_provider.make_user("dan@example.com", groups="boss")
    oidc_provider.make_user("eve@example.com", groups=["staff"])
    settings = WebSettings(oidc=oidc(oidc_provider), token_required=True)
    with served(MemoryEngine(), settings, clock=watch) as made:
        yield made


@pytest.fixture
def api(one: Served, watch: Watch) -> Iterator[Served]:
    one.client.cookies.clear()
    watch.ahead = 0.0
    yield one
    watch.ahead = 0.0


def start(api: Served, **query: str) -> str:
    """Where the browser is sent."""
    answer = api.client.get("/auth/login", params=query)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


def come_back(api: Served, url: str) -> str:
    """Where the browser ends up after the provider has sent it back."""
    answer = api.client.get(url)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


def log_in(api: Served, provider: LoginPlace, name: str, **query: str) -> str:
    return come_back(api, provider.approve(start(api, **query), name))


def session(api: Served) -> httpx.Response:
    return api.client.get("/api/v1/dashboard/session")


def test_a_member_of_a_group_logs_in_acts_and_logs_out(api: Served, oidc_provider: LoginPlace) -> None:
    assert session(api).status_code == 401
    url = start(api, view="/tasks?status=failed")
    asked = parse_qs(urlsplit(url).query)
    assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == (["code"], ["S256"], ["qo"])
    assert len(asked["nonce"][0]) == 64 and len(asked["code_challenge"][0]) == 43
    assert come_back(api, oidc_provider.approve(url, "ann@example.com")) == "../ui/#/tasks?status=failed"
    (cookie,) = api.client.cookies.jar
    assert cookie.name == "qo-session" and cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "strict" and len(cookie.value or "") == 64
    assert 0 < (cookie.expires or 0) - system_clock() <= LIFETIME

    known = session(api).json()
    assert (known["user"], known["scopes"], known["can"]["write"]) == ("ann@example.com", ["operate"], True)
    assert str(cookie.value) not in session(api).text

    assert api.post("/api/tasks/pause").status_code == 403  # without the page's token
    assert api.post("/api/tasks/pause", headers={"x-csrf-token": "0" * 64}).status_code == 403
    csrf = {"x-csrf-token": known["csrf_token"]}
    assert api.post("/api/tasks/pause", headers=csrf).status_code == 200
    assert api.post("/api/tasks/resume", headers=csrf).status_code == 200
    assert api.client.delete("/api/tasks?olderThan=2020-01-01", headers=csrf).status_code == 403  # that is for admins

    secret = cookie.value
    assert api.post("/auth/logout").status_code == 403
    out = api.post("/auth/logout", headers=csrf)
    assert out.status_code == 200 and out.json()["provider"].startswith(f"{oidc_provider.issuer}/oauth2/end_session?")
    assert not list(api.client.cookies.jar)
    api.client.cookies.set("qo-session", secret or "")
    assert session(api).status_code == 401 and "ended" in session(api).text  # the server has forgotten it, too


def test_who_did_what_names_the_person(api: Served, oidc_provider: LoginPlace) -> None:
    log_in(api, oidc_provider, "dan@example.com")  # the one group is a text, and told by the user info
    csrf = {"x-csrf-token": session(api).json()["csrf_token"]}
    api.post("/api/v1/controls/pause", {"queue": "mail"}, headers=csrf)
    api.post("/auth/logout", headers=csrf)
    log_in(api, oidc_provider, "dan@example.com")
    actions = api.client.get("/api/v1/audit", params={"who": "dan@"}).json()["actions"]
    assert [(each["actor"], each["action"], each["target"]) for each in actions] == [
        ("user", "login", "admin"),
        ("user", "logout", ""),
        ("user", "pause", "queues mail"),
        ("user", "login", "admin"),
    ]


@pytest.mark.parametrize("name", ["bob@example.com", "cat@example.com"])
def test_somebody_without_a_role_stays_out(
    api: Served, oidc_provider: LoginPlace, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert log_in(api, oidc_provider, name) == "../ui/#/login?problem=no_role"
    assert not list(api.client.cookies.jar) and session(api).status_code == 401
    assert name in caplog.text


def test_a_session_ends_after_its_lifetime(api: Served, oidc_provider: LoginPlace, watch: Watch) -> None:
    log_in(api, oidc_provider, "eve@example.com")
    watch.ahead = LIFETIME - 60
    assert session(api).status_code == 200
    watch.ahead = LIFETIME + 1
    assert session(api).status_code == 401


def test_a_token_works_beside_the_login_and_cookies_do_not_count_twice(api: Served, oidc_provider: LoginPlace) -> None:
    log_in(api, oidc_provider, "eve@example.com")
    made = api.run(create_token(api.queue.engine, f"t{id(api)}", [Scope.OPERATE], now=0.0))
    api.app.state.gate.forget()
    bearer = {"authorization": f"Bearer {made.secret}"}
    assert api.post("/api/tasks/resume", headers=bearer).status_code == 200  # needs no page's token
    assert api.post("/auth/logout", headers=bearer).json() == {"provider": None}
    assert session(api).status_code == 200  # the session of the cookie beside it goes on


def test_an_answer_that_belongs_to_no_login_of_this_browser_is_refused(api: Served, oidc_provider: LoginPlace) -> None:
    refused = "../ui/#/login?problem=state"
    url = oidc_provider.approve(start(api), "ann@example.com")
    mine = api.client.cookies["qo-login"]
    api.client.cookies.clear()
    assert come_back(api, url) == refused  # another browser: somebody was made to follow a stranger's link
    start(api)
    assert come_back(api, url) == refused  # of another login
    api.client.cookies.set("qo-login", mine)
    assert come_back(api, url.replace("state=", "state=0")) == refused
    api.client.cookies.clear()
    api.client.cookies.set("qo-login", mine)
    assert come_back(api, url) == "../ui/#/"
    api.client.cookies.clear()
    api.client.cookies.set("qo-login", mine)
    assert come_back(api, url) == "../ui/#/login?problem=invalid"  # the same code again
    api.client.cookies.clear()
    assert come_back(api, "/auth/callback?state=%F0%9F%98%80&code=x&unknown=1") == refused


def test_what_the_provider_refuses_is_said(api: Served, oidc_provider: LoginPlace) -> None:
    url = start(api)
    state = parse_qs(urlsplit(url).query)["state"][0]
    assert come_back(api, f"/auth/callback?error=access_denied&state={state}") == "../ui/#/login?problem=denied"
    url = oidc_provider.approve(start(api), "ann@example.com")
    assert come_back(api, f"{url}&iss=https%3A%2F%2Fevil.example") == "../ui/#/login?problem=invalid"
    url = start(api)
    state = parse_qs(urlsplit(url).query)["state"][0]
    assert come_back(api, f"/auth/callback?code=made-up&state={state}") == "../ui/#/login?problem=invalid"


class AttemptWithVerifier(LoginAttempt):
    """One that redeems its code with another verifier than the login began with."""

    verifier = ""

    @property
    def code_verifier(self) -> str:
        return self.verifier


@pytest.mark.parametrize(
    ("verifier", "said"),
    [("0" * 64, "Code challenge failed"), ("", "Missing 'code_verifier'")],
    ids=["wrong", "missing"],
)
async def test_a_code_is_worth_nothing_without_the_verifier_of_its_login(
    oidc_provider: LoginPlace, verifier: str, said: str
) -> None:
    """The provider checks it: whoever sees a code on its way cannot redeem it."""
    oidc_provider.make_user("pkce@example.com", groups=["ops"])
    provider, there = OidcProvider(oidc(oidc_provider), system_clock), "http://localhost/auth/callback"

    async def code_of(attempt: LoginAttempt) -> str:
        url = oidc_provider.approve(await provider.login_url(attempt, there), "pkce@example.com")
        return parse_qs(urlsplit(url).query)["code"][0]

    attempt = new_attempt("/")
    stolen = AttemptWithVerifier(*attempt)
    stolen.verifier = verifier
    with pytest.raises(LoginRefused, match=said) as refused:
        await provider.identify(await code_of(attempt), stolen, there)
    assert refused.value.problem == "invalid"
    attempt = new_attempt("/")
    assert (await provider.identify(await code_of(attempt), attempt, there)).groups == ("ops",)


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:9", "{}/"], ids=["away", "another name"])
def test_a_provider_that_cannot_be_used_is_said_and_tokens_go_on(
    oidc_provider: LoginPlace, issuer: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = oidc(oidc_provider, issuer=issuer.format(oidc_provider.issuer))
    with served(MemoryEngine(), WebSettings(oidc=settings, token_required=True)) as api:
        secret = api.run(create_token(api.queue.engine, "t", [Scope.READ], now=0.0)).secret
        with caplog.at_level(logging.WARNING, "qo.web"):
            assert start(api) == "../ui/#/login?problem=provider_down"
        assert "cannot be used" in caplog.text
        answer = api.client.get("/api/v1/dashboard/session", headers={"authorization": f"Bearer {secret}"})
        assert answer.status_code == 200 and answer.json()["user"] is None


def test_behind_https_cookies_are_secure(oidc_provider: LoginPlace) -> None:
    settings = oidc(oidc_provider, public_url="https://tasks.example.com")
    with served(MemoryEngine(), WebSettings(oidc=settings, token_required=True)) as api:
        answer = api.client.get("/auth/login")
        assert parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"] == [
            "https://tasks.example.com/auth/callback"
        ]
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith("__host-qo-login=")
        assert all(part in cookie for part in ("secure", "httponly", "samesite=lax", "path=/", "max-age=600"))


def test_without_a_provider_there_is_nothing_to_log_in_at() -> None:
    with served(MemoryEngine()) as api:
        for path in ("login", "callback?code=x"):
            assert api.client.get(f"/auth/{path}").headers["location"] == "../ui/#/login?problem=not_set_up"
        assert "login" not in api.client.get("/ui/config.json").json()
        api.client.cookies.set("qo-session", "0" * 64)
        assert session(api).json()["user"] is None


# --- ID tokens that a provider would not make


KEY = ECKey.generate_key("P-256", {"kid": "k"})
STRANGER = ECKey.generate_key("P-256", {"kid": "k"})
ATTEMPT = LoginAttempt("0" * 64, "/")


def id_token(key: ECKey | OctKey = KEY, header: dict[str, str] | None = None, **changed: object) -> str:
    now = int(system_clock())
    claims = {"iss": "https://login.example", "aud": "qo", "sub": "ann", "iat": now, "exp": now + 60}
    claims |= {"nonce": ATTEMPT.nonce} | changed
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(header or {"alg": "ES256", "kid": "k"}, given, key)


@pytest.fixture
def provider() -> OidcProvider:
    made = OidcProvider(OidcSettings(issuer="https://login.example", client_id="qo", roles=ROLES), system_clock)
    made.trust(KeySet([KEY]), {"id_token_signing_alg_values_supported": ["ES256", "HS256", "none"]})
    return made


async def test_a_good_id_token_is_believed(provider: OidcProvider) -> None:
    assert (await provider.read_claims({"id_token": id_token()}, ATTEMPT.nonce))["sub"] == "ann"
    two = id_token(aud=["qo", "other"], azp="qo")
    assert (await provider.read_claims({"id_token": two}, ATTEMPT.nonce))["sub"] == "ann"


def test_nobody_is_named_by_what_anyone_can_write_into_a_profile(provider: OidcProvider) -> None:
    """The name stands in the audit trail."""
    about = {"sub": "7", "name": "Ann", "preferred_username": "ann", "email": "ann@example.com"}
    assert provider.identity_of(about).name == "ann@example.com"
    assert provider.identity_of(about | {"email_verified": True}).name == "ann@example.com"
    assert provider.identity_of(about | {"email_verified": False}).name == "ann"
    assert provider.identity_of(about | {"email_verified": "false", "preferred_username": ""}).name == "Ann (7)"
    assert provider.identity_of({"sub": "7", "name": "A" * 500}).name.endswith("A (7)")
    assert provider.identity_of({"sub": "7"}).name == "7"


async def test_logins_do_not_take_the_connections_of_others() -> None:
    """Each waits for the provider, and anyone can begin one."""
    waits = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await waits.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = WebSettings(oidc=OidcSettings(issuer=issuer, client_id="qo", roles=ROLES))
    async with server, in_process(Client(MemoryEngine()), settings) as client:
        ways = ["/auth/login"] * MAX_LOGINS + ["/auth/login", f"/auth/callback?code=c&state={ATTEMPT.state}"]
        headers = {"cookie": f"qo-login={ATTEMPT.to_cookie()}"}
        begun = [asyncio.create_task(client.get(way, headers=headers)) for way in ways]
        async with asyncio.timeout(8):  # less than a provider may take
            for refused in begun[MAX_LOGINS:]:
                assert (await refused).headers["location"] == "../ui/#/login?problem=provider_down"
        assert not any(each.done() for each in begun[:MAX_LOGINS])
        waits.set()
        answers = await asyncio.gather(*begun)
        assert {each.headers["location"] for each in answers} == {"../ui/#/login?problem=provider_down"}


@pytest.mark.parametrize("offered", [["HS256"], ["none"], ["RS256"]])
async def test_a_signature_that_others_can_make_is_refused_whatever_the_provider_offers(
    provider: OidcProvider, offered: list[str]
) -> None:
    shared = OctKey.import_key("s3cret" * 8, {"kid": "k"})
    provider.trust(KeySet([shared]), {"id_token_signing_alg_values_supported": offered})
    with pytest.raises((JoseError, ValueError)):
        await provider.read_claims({"id_token": id_token(shared, {"alg": "HS256", "kid": "k"})}, ATTEMPT.nonce)


@pytest.mark.parametrize(
    "bad",
    [
        id_token(aud="other"),
        id_token(aud=["qo", "other"], azp="other"),
        id_token(iss="https://evil.example"),
        id_token(nonce="another"),
        id_token(nonce=None),
        id_token(exp=int(system_clock()) - 3600),
        id_token(exp=None),
        id_token(sub=None),
        id_token(iat=int(system_clock()) + 3600),
        id_token(STRANGER),
        id_token().rpartition(".")[0] + ".",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.",
        "no token",
        "",
    ],
    ids=[
        "another audience",
        "another party",
        "another issuer",
        "another nonce",
        "no nonce",
        "expired",
        "no expiry",
        "no subject",
        "from the future",
        "a stranger's key",
        "no signature",
        "no algorithm",
        "no token",
        "empty",
    ],  # the tokens are random, and every test process must give a test the same name
)
async def test_an_id_token_that_is_not_meant_for_this_login_is_refused(
    provider: OidcProvider, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def fetch_token(self, *_: object, **__: object) -> dict[str, str]:
            return {"id_token": bad} if bad else {}

    async def known(**_: object) -> dict[str, Any]:
        return {"token_endpoint": "https://login.example/token"}

    monkeypatch.setattr(provider, "_client", lambda _: Client())
    monkeypatch.setattr(provider, "_read_metadata", known)
    with pytest.raises(LoginRefused) as refused:
        await provider.identify("code", ATTEMPT, "https://tasks.example.com/auth/callback")
    assert refused.value.problem == "invalid"


# --- sessions, settings


async def test_sessions_are_bounded_and_damage_ends_them_all() -> None:
    engine = MemoryEngine()
    settings = oidc(LoginPlace("http://localhost"))
    store = SessionStore(engine, system_clock, settings)
    opened = [await store.open(subject="s", name="n", groups=["staff"], lifetime=60) for _ in range(3)]
    for each in opened:
        caller = await store.caller(each.secret)
        assert caller is not None and await store.is_open(caller)
    note = await engine.read_note(SESSIONS)
    assert note is not None and all(each.secret.encode() not in note.data for each in opened)
    assert await store.caller("x") is None and await store.caller("0" * 64) is None
    await engine.write_note(SESSIONS, b"garbage", expected=note.version)
    other = SessionStore(engine, system_clock, settings)
    assert await other.caller(opened[0].secret) is None
    again = await other.open(subject="s", name="n", groups=["staff"], lifetime=60)
    assert await other.caller(again.secret) is not None
    assert MAX_SESSIONS == 1000


def test_a_way_back_leads_nowhere_else() -> None:
    assert attempt_in("") is None and attempt_in("0" * 63) is None
    for view in ("/tasks?status=failed", "/", "/a b"):
        attempt = new_attempt(view)
        assert attempt_in(attempt.to_cookie()) == attempt
    for view in ("//evil.example\r\nX: y", "https://evil.example", "x" * 400, ""):
        assert new_attempt(view).view == "/"
    one, other = new_attempt("/"), new_attempt("/")
    secrets = {one.state, one.nonce, one.code_verifier, other.state, other.nonce, other.code_verifier}
    assert len(secrets) == 6


def test_without_its_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qo.web.oidc.provider", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'qo-queue\[oidc\]'"):
        LoginService(MemoryEngine(), oidc(LoginPlace("http://localhost")), system_clock)


GIVEN: dict[str, Any] = {
    "oidc_issuer": "https://login.example", "oidc_client_id": "qo", "oidc_client_secret": None, "public_url": None,
    "oidc_roles": ("ops=operate", "CN=a,OU=b=admin,submit"), "oidc_groups_claim": "groups",
    "oidc_scopes": ("openid",), "oidc_session": 60.0,
}  # fmt: skip


def test_people_from_elsewhere_need_a_public_url() -> None:
    """Else their cookies would not be kept to https."""
    login = OidcSettings(issuer="https://login.example", client_id="qo", roles=ROLES)
    with pytest.raises(InvalidSetting, match="--public-url"):
        create_app("memory://", settings=WebSettings(oidc=login, hosts=("tasks.example.com",)))
    there = OidcSettings(issuer=login.issuer, client_id="qo", roles=ROLES, public_url="https://tasks.example.com")
    create_app("memory://", settings=WebSettings(oidc=there, hosts=("tasks.example.com",)))
    create_app("memory://", settings=WebSettings(oidc=login))


def test_settings_are_checked() -> None:
    made = oidc_settings(GIVEN)
    assert made is not None and made.roles["CN=a,OU=b"] == {Scope.ADMIN, Scope.SUBMIT}
    assert made.rights_of(["ops"]) == (frozenset({Scope.OPERATE}), ()) and not made.rights_of(["x"]).may_look
    only_submits = check_oidc(oidc(LoginPlace("http://localhost"), roles={"a": frozenset({Scope.SUBMIT})}))
    assert not only_submits.rights_of(["a"]).may_look
    assert oidc_settings(GIVEN | {"oidc_issuer": None, "oidc_client_id": None, "oidc_roles": ()}) is None
    for wrong in (
        {"oidc_issuer": "http://login.example"},
        {"oidc_issuer": "login.example"},
        {"oidc_issuer": None},
        {"public_url": "http://tasks.example.com"},
        {"oidc_client_id": ""},
        {"oidc_roles": ()},
        {"oidc_scopes": ("email",)},
        {"oidc_session": 1.0},
    ):
        with pytest.raises(InvalidSetting, match="--"):
            oidc_settings(GIVEN | wrong)
    limited = parse_roles(["a;b=read;queue=mail;queue=sms;type=send@2", "a;b=operate;type=send"])
    assert not limited.roles
    assert str(oidc(LoginPlace("http://localhost"), limited_roles=limited.limited_roles).rights_of(["a;b"])) == (
        "read (queue mail, queue sms, type send@2); operate (type send)"
    )
    with pytest.raises(InvalidSetting, match="queue"):
        parse_roles(["a=read;queue=not a name"])
    for role in ("ops", "ops=", "=read", "ops=engine", "ops=work", "ops=root", "ops;queue=a", "ops=read;colour=red"):
        with pytest.raises(InvalidSetting, match="GROUP=ROLE"):
            parse_roles([role])
