"""`qo serve`: run the HTTP API and dashboard."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from qo.cli.context import DURATION, Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.monitor_options import monitor_options_with, monitor_settings
from qo.cli.output import echo
from qo.client import Client
from qo.errors import InvalidSetting
from qo.log_output import LEVELS, start_logging
from qo.sweep import FAILED_RETENTION

Function = TypeVar("Function", bound=Callable[..., Any])
_EXAMPLES = examples(
    "qo serve",
    "qo serve --port 9000 --origin https://dashboard.example.com",
    "qo token create --name ops --scopes admin && qo serve --host 0.0.0.0 --allowed-host queue.example.com",
)


_LIMIT_OPTIONS = (  # the defaults are those of `qo.web.http.settings`
    option(
        "--max-connections",
        type=click.IntRange(1),
        default=1000,
        var="QO_MAX_CONNECTIONS",
        help="Maximum number of connections. A further one closes the connection that has been idle for longest.",
    ),
    option(
        "--max-header-size",
        type=click.IntRange(1024),
        default=32 * 1024,
        var="QO_MAX_HEADER_SIZE",
        help="Maximum size of a request line and its headers, in bytes.",
    ),
    option(
        "--header-timeout",
        type=DURATION,
        default=10.0,
        var="QO_HEADER_TIMEOUT",
        help="Time limit for receiving the headers of a request.",
    ),
    option(
        "--idle-timeout",
        type=DURATION,
        default=75.0,
        var="QO_IDLE_TIMEOUT",
        help="Close a connection that sends no request for this long.",
    ),
    option(
        "--request-timeout",
        type=DURATION,
        default=120.0,
        var="QO_REQUEST_TIMEOUT",
        help="Time limit of a request, from its headers to the last byte of the response; event streams have none.",
    ),
    option(
        "--max-upload-memory",
        type=click.IntRange(1),
        default=64,
        var="QO_MAX_UPLOAD_MEMORY",
        help="Memory for request bodies, in MiB. When it is full, the oldest unfinished uploads are rejected.",
    ),
    option(
        "--max-unsent-memory",
        type=click.IntRange(1),
        default=32,
        var="QO_MAX_UNSENT_MEMORY",
        help="Memory for responses that clients have not read, in MiB. When it is full, slow clients are disconnected.",
    ),
)


_LOGIN_OPTIONS = (
    option("--public-url", var="QO_PUBLIC_URL", metavar="URL", help="URL under which browsers reach this server."),
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
        help="Client secret; prefer the environment variable. Without it the server is a public client.",
    ),
    option(
        "--oidc-role",
        "oidc_roles",
        multiple=True,
        var="QO_OIDC_ROLES",
        metavar="GROUP=ROLE[,ROLE][;queue=NAME][;type=NAME]",
        help="Roles of a group's members (read, submit, operate, admin); repeat for more groups.",
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


def limit_options(function: Function) -> Function:
    for add in reversed(_LIMIT_OPTIONS):
        function = add(function)
    return function


def login_options(function: Function) -> Function:
    for add in reversed(_LOGIN_OPTIONS):
        function = add(function)
    return function


@click.command("serve", epilog=_EXAMPLES)
@common
@option("--host", default="127.0.0.1", var="QO_HOST", help="Address to listen on; a public address requires a token.")
@option("--port", type=click.IntRange(0, 65535), default=8000, var="QO_PORT", help="Port; 0 chooses a free one.")
@option(
    "--allowed-host",
    "hosts",
    multiple=True,
    var="QO_ALLOWED_HOSTS",
    help="A host name that clients use; repeat for more.",
)
@option(
    "--origin",
    "origins",
    multiple=True,
    var="QO_ORIGINS",
    help="A web origin whose pages may call the API; repeat for more.",
)
@option("--token-required", is_flag=True, var="QO_TOKEN_REQUIRED", help="Require a token from local clients too.")
@option(
    "--rate-limit",
    type=click.FloatRange(0),
    default=0.0,
    var="QO_RATE_LIMIT",
    help="Requests per second for each token; 0 for no limit.",
)
@limit_options
@login_options
@option(
    "--priority-config",
    type=click.Path(path_type=Path),
    var="QO_PRIORITY_CONFIG",
    help="JSON file with retries and timeouts by priority, for /api/v1.",
)
@option("--title", var="QO_TITLE", help="Title of the dashboard.  [default: the URL]")
@option("--no-monitor", is_flag=True, var="QO_NO_MONITOR", help="Do not run a monitor in the server.")
@option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    var="QO_LOG_LEVEL",
    help="Log level; the log goes to stderr.",
)
@option("--log-json", is_flag=True, var="QO_LOG_JSON", help="Log one JSON object per line.")
@monitor_options_with(failed_retention=FAILED_RETENTION)
def command(call: Invocation, *, host: str, port: int, **given: Any) -> int:
    """Run the HTTP API and dashboard: the dashboard at /, then /api/v1, /api/tasks, /docs and /healthz.

    Until the first token is created, the server accepts requests from this machine only. SIGTERM or Ctrl-C stops it.
    """
    try:
        from qo.cli import run_server  # noqa: PLC0415 - its dependencies are an extra
    except ImportError as error:
        raise InvalidSetting("the server needs more packages: pip install 'qo-queue[web]'") from error

    title = given["title"] or call.shown_url
    start_logging(given["log_level"], as_json=given["log_json"] or call.json)
    settings = run_server.settings_of(host, title, given, None if given["no_monitor"] else monitor_settings(given))

    async def work(client: Client) -> Any:
        return await run_server.tokens_of(client)

    tokens = call.run(work, create=True, in_memory=True)
    run_server.check_address(host, tokens=bool(tokens.tokens), login=settings.oidc is not None)
    if not tokens.tokens and settings.oidc is None and not call.json:
        if tokens.existed:
            print_note("all tokens are revoked, so every request is rejected; run qo token create, or qo token reset")
        elif not settings.token_required:
            print_note(
                "no token exists: requests are accepted from this machine only, without a token (see qo token create)"
            )
    try:
        run_server.serve(call.url, settings, host=host, port=port)
    except KeyboardInterrupt:  # how a user stops the server, so not an error
        return Exit.INTERRUPTED
    return Exit.CLEAN


def print_note(text: str) -> None:
    with suppress(OSError):  # as the log
        echo(text, err=True)
