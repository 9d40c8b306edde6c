"""ID tokens that a provider would not make, the limits of logins and sessions, and the settings of a provider."""

import asyncio
import sys
from typing import Any, Self

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
from qo.web.oidc.login import LoginAttempt, LoginRefused, LoginService, attempt_in, new_attempt
from qo.web.oidc.provider import MAX_LOGINS, OidcProvider
from qo.web.oidc.sessions import MAX_SESSIONS, SESSIONS, SessionStore
from qo.web.oidc.settings import OidcSettings, check_oidc, parse_roles
from tests.servers.oidc import LoginPlace
from tests.web.oidc_login import ROLES, oidc
from tests.web.serving import in_process

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


def test_users_are_not_named_by_claims_that_they_can_edit(provider: OidcProvider) -> None:
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
async def test_a_signature_that_others_can_create_is_refused_even_if_the_provider_offers_it(
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


def test_without_its_packages_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
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
