"""Which provider people log in at, and what their groups may do. Imports nothing of the extra `oidc`."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct

from qo.errors import InvalidSetting
from qo.web.callers import IMPLIED, Scope

# A person at the dashboard is no worker, and the engine port has no page.
ROLES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)
MAX_SESSION = 7 * 86_400.0  # seconds


class OidcSettings(Struct, frozen=True, kw_only=True):
    issuer: str  # as the provider writes it in its tokens
    client_id: str
    client_secret: str = ""  # empty: a public client, protected by PKCE alone
    public_url: str = ""  # where browsers reach this server; empty: http and the name they call
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    roles: dict[str, frozenset[Scope]] = {}  # by group
    session_lifetime: float = 8 * 3600.0  # seconds

    @property
    def is_secure(self) -> bool:
        """Whether browsers speak https to this server."""
        return self.public_url.startswith("https://")

    def scopes_of(self, groups: Iterable[str]) -> frozenset[Scope]:
        """What a member of these groups may do; empty: nothing."""
        granted = frozenset(scope for group in groups for scope in self.roles.get(group, ()))
        may_look = any(Scope.READ in (scope, *IMPLIED.get(scope, ())) for scope in granted)
        return granted if may_look else frozenset()


def check_oidc(settings: OidcSettings) -> OidcSettings:
    """Raises InvalidSetting."""
    _check_url("--oidc-issuer", settings.issuer)
    if settings.public_url:
        _check_url("--public-url", settings.public_url)
    if not settings.client_id:
        raise InvalidSetting("--oidc-issuer needs --oidc-client-id, the name of this server at the provider")
    if not settings.roles:
        raise InvalidSetting("nobody could log in: say what a group may do, such as --oidc-role ops=operate")
    if "openid" not in settings.scopes:
        raise InvalidSetting("--oidc-scope must include openid")
    if not 60 <= settings.session_lifetime <= MAX_SESSION:  # noqa: PLR2004 - a minute
        raise InvalidSetting("--oidc-session must be between 1m and 7d")
    return settings


def _check_url(option: str, url: str) -> None:
    """Tokens and codes travel there: https, or this very machine."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSetting(f"{option} {url!r:.100} is not a URL such as https://login.example.com")
    if parts.scheme == "http" and not is_local:
        raise InvalidSetting(f"{option} {url!r:.100} must be https; http is for this machine only")


def parse_roles(given: Iterable[str]) -> dict[str, frozenset[Scope]]:
    """`ops=operate` or `admins=admin,submit`, one for each group."""
    roles: dict[str, frozenset[Scope]] = {}
    for each in given:
        group, _, names = each.rpartition("=")
        try:
            granted = frozenset(Scope(name.strip()) for name in names.split(",") if name.strip())
        except ValueError:
            granted = frozenset()
        if not group or not granted or not granted <= set(ROLES):
            raise InvalidSetting(f"--oidc-role {each!r:.100} is not GROUP=ROLE; roles are {', '.join(ROLES)}")
        roles[group] = roles.get(group, frozenset()) | granted
    return roles
