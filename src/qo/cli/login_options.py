"""The options of `qo serve` that say where people log in to the dashboard, and what they may do."""

from collections.abc import Callable
from typing import Any, TypeVar

from qo.cli.context import option
from qo.cli.params import DURATION

Function = TypeVar("Function", bound=Callable[..., Any])


def login_options(function: Function) -> Function:
    for add in reversed(
        (
            option("--public-url", var="QO_PUBLIC_URL", metavar="URL", help="Where browsers reach this server."),
            option("--oidc-issuer", var="QO_OIDC_ISSUER", metavar="URL", help="OpenID Connect provider for logins."),
            option(
                "--oidc-client-id",
                var="QO_OIDC_CLIENT_ID",
                metavar="ID",
                help="Client id of this server at the provider.",
            ),
            option(
                "--oidc-client-secret",
                var="QO_OIDC_CLIENT_SECRET",
                metavar="SECRET",
                help="Client secret; prefer the variable. Without one the server is a public client.",
            ),
            option(
                "--oidc-role",
                "oidc_roles",
                multiple=True,
                var="QO_OIDC_ROLES",
                metavar="GROUP=ROLE[,ROLE][;queue=NAME][;type=NAME]",
                help="Roles of a group's members: read, submit, operate, admin; repeat for more.",
            ),
            option(
                "--oidc-groups-claim",
                default="groups",
                var="QO_OIDC_GROUPS_CLAIM",
                metavar="NAME",
                help="Claim that contains the groups.",
            ),
            option(
                "--oidc-scope",
                "oidc_scopes",
                multiple=True,
                default=("openid", "profile", "email"),
                var="QO_OIDC_SCOPES",
                help="Scope to request from the provider; repeat for more.",
            ),
            option(
                "--oidc-session",
                type=DURATION,
                default=8 * 3600.0,
                var="QO_OIDC_SESSION",
                help="How long a login is valid.",
            ),
        )
    ):
        function = add(function)
    return function
