"""The settings of the login: the provider, and the roles of groups. Imports nothing of the extra `oidc`."""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from qo.errors import InvalidSetting, InvalidTask
from qo.model import check_names, check_types
from qo.web.callers import AccessLimits, LimitedRole, Scope, allows
from qo.web.http.tokens import check_limit

# The dashboard neither runs tasks nor uses the engine port.
ROLES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)
MAX_SESSION = 7 * 86_400.0  # seconds


class GroupRights(NamedTuple):
    """The permissions of groups: for the whole store, and inside limits."""

    scopes: frozenset[Scope]
    limited_roles: tuple[LimitedRole, ...]

    @property
    def may_look(self) -> bool:
        """Whether there is anything to read. A login is useless otherwise."""
        granted = self.scopes.union(*(role.scopes for role in self.limited_roles))
        return allows(granted, Scope.READ)

    def __str__(self) -> str:
        return "; ".join(
            [
                *([", ".join(sorted(self.scopes))] if self.scopes else []),
                *(_in_words(role) for role in self.limited_roles),
            ]
        )


def _in_words(role: LimitedRole) -> str:
    limits = [
        *(f"queue {name}" for name in sorted(role.limits.queues)),
        *(f"type {name}" for name in sorted(role.limits.types)),
    ]
    return f"{', '.join(sorted(role.scopes))} ({', '.join(limits)})"


class OidcSettings(Struct, frozen=True, kw_only=True):
    issuer: str  # exactly as in the tokens of the provider
    client_id: str
    client_secret: str = ""  # empty: a public client, protected by PKCE alone
    public_url: str = ""  # the URL of this server for browsers; empty: http and the requested host
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    roles: dict[str, frozenset[Scope]] = {}  # by group, for the whole store
    limited_roles: dict[str, tuple[LimitedRole, ...]] = {}  # by group, inside queues and types
    session_lifetime: float = 8 * 3600.0  # seconds

    @property
    def is_secure(self) -> bool:
        """Whether browsers use https."""
        return self.public_url.startswith("https://")

    def knows(self, group: str) -> bool:
        return group in self.roles or group in self.limited_roles

    def rights_of(self, groups: Iterable[str]) -> GroupRights:
        """The combined permissions of these groups."""
        known = frozenset(groups)
        scopes = frozenset[Scope]().union(*(granted for group, granted in self.roles.items() if group in known))
        limited = [role for group, roles in self.limited_roles.items() if group in known for role in roles]
        return GroupRights(scopes, tuple(limited))


def check_oidc(settings: OidcSettings) -> OidcSettings:
    """Raises InvalidSetting."""
    _check_url("--oidc-issuer", settings.issuer)
    if settings.public_url:
        _check_url("--public-url", settings.public_url)
    if not settings.client_id:
        raise InvalidSetting("--oidc-issuer needs --oidc-client-id, the client id of this server at the provider")
    if not settings.roles and not settings.limited_roles:
        raise InvalidSetting("no group has a role, so no user could log in; add one, such as --oidc-role ops=operate")
    if "openid" not in settings.scopes:
        raise InvalidSetting("--oidc-scope must include openid")
    if not 60 <= settings.session_lifetime <= MAX_SESSION:  # noqa: PLR2004 - a minute
        raise InvalidSetting("--oidc-session must be between 1m and 7d")
    return settings


def _check_url(option: str, url: str) -> None:
    """The URL receives tokens and codes, so it must be https or local."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSetting(f"{option} {url!r:.100} is not a URL such as https://login.example.com")
    if parts.scheme == "http" and not is_local:
        raise InvalidSetting(f"{option} {url!r:.100} must use https; http is only for this machine")


class GroupRoles(NamedTuple):
    roles: dict[str, frozenset[Scope]]
    limited_roles: dict[str, tuple[LimitedRole, ...]]


def parse_roles(given: Iterable[str]) -> GroupRoles:
    """`ops=operate`, `admins=admin,submit` or `mail=operate;queue=emails;type=send`, one or more for each group."""
    roles: dict[str, frozenset[Scope]] = {}
    limited: dict[str, tuple[LimitedRole, ...]] = {}
    for each in given:
        mapping, limits = _split_limits(each)
        group, _, names = mapping.rpartition("=")
        try:
            granted = frozenset(Scope(name.strip()) for name in names.split(",") if name.strip())
        except ValueError:
            granted = frozenset()
        if not group or not granted or not granted <= set(ROLES):
            raise InvalidSetting(
                f"--oidc-role {each!r:.100} is not GROUP=ROLE or GROUP=ROLE;queue=NAME;type=NAME; "
                f"roles are {', '.join(ROLES)}"
            )
        if limits.is_whole:
            roles[group] = roles.get(group, frozenset()) | granted
        else:
            limited[group] = (*limited.get(group, ()), LimitedRole(scopes=granted, limits=limits))
    return GroupRoles(roles, limited)


def _split_limits(given: str) -> tuple[str, AccessLimits]:
    """The group with its roles, and the limits. The name of a group can contain semicolons."""
    names: dict[str, list[str]] = {"queue": [], "type": []}
    while True:
        rest, _, last = given.rpartition(";")
        kind, _, name = last.partition("=")
        if not rest or kind not in names:
            break
        given = rest
        names[kind].append(name)
    try:
        queues = check_limit("queue", check_names("queue", names["queue"]))
        types = check_limit("type", check_types("type", names["type"]))
    except InvalidTask as error:
        raise InvalidSetting(f"--oidc-role {given!r:.100}: {error}") from error
    return given, AccessLimits(queues=queues, types=types)
