"""Settings of a login through the test provider."""

from typing import Any

from qo.web.callers import Scope
from qo.web.oidc.settings import OidcSettings
from tests.servers.oidc import LoginPlace

ROLES = {"ops": frozenset({Scope.OPERATE}), "staff": frozenset({Scope.READ}), "boss": frozenset({Scope.ADMIN})}
LIFETIME = 3600.0


def oidc(provider: LoginPlace, **more: Any) -> OidcSettings:
    given: dict[str, Any] = {
        "client_id": "qo",
        "client_secret": "s3cret",
        "roles": ROLES,
        "session_lifetime": LIFETIME,
    } | more
    return OidcSettings(issuer=given.pop("issuer", provider.issuer), **given)
