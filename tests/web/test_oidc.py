"""Logging in through a real provider: who gets in, who does not, and what a session may do."""

import logging
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from qo.web.oidc.login import LoginAttempt, LoginRefused, new_attempt
from qo.web.oidc.provider import OidcProvider
from tests.servers.oidc import LoginPlace
from tests.web.oidc_login import LIFETIME, oidc
from tests.web.serving import Served, served


class Watch:
    """The server's clock, which a test may turn."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return system_clock() + self.ahead


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


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


def test_the_trail_names_the_user(api: Served, oidc_provider: LoginPlace) -> None:
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
def test_a_user_without_a_role_is_rejected(
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
    made = api.run(create_token(api.qo_client.engine, f"t{id(api)}", [Scope.OPERATE], now=0.0))
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
        secret = api.run(create_token(api.qo_client.engine, "t", [Scope.READ], now=0.0)).secret
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
