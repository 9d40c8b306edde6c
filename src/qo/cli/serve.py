"""`qo serve`: the HTTP face of a queue."""

from pathlib import Path
from typing import Any

import click

from qo.cli.context import Invocation, common, examples, option
from qo.cli.limit_options import limit_options
from qo.cli.login_options import login_options
from qo.cli.logs import LEVELS, start_logging
from qo.cli.monitor_options import monitor_options_with, monitor_settings
from qo.cli.output import echo
from qo.client import Client
from qo.errors import InvalidSetting
from qo.sweep.retention import FAILED_RETENTION

EXAMPLES = examples(
    "qo serve",
    "qo serve --port 9000 --origin https://dashboard.example.com",
    "qo token create --name ops --scopes admin && qo serve --host 0.0.0.0 --allowed-host queue.example.com",
)


@click.command("serve", epilog=EXAMPLES)
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
@option("--token-required", is_flag=True, var="QO_TOKEN_REQUIRED", help="Require a token also from this machine.")
@option(
    "--rate-limit", type=click.FloatRange(0), default=0.0, var="QO_RATE_LIMIT", help="Requests per second and token."
)
@limit_options
@login_options
@option(
    "--priority-config",
    type=click.Path(path_type=Path),
    var="QO_PRIORITY_CONFIG",
    help="JSON with retries and timeouts by priority, for /api/v1.",
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
def command(call: Invocation, *, host: str, port: int, **given: Any) -> None:
    """Serve the queue over HTTP: the dashboard at /, then /api/v1, /api/tasks, /docs, /healthz.

    As long as there never was a token it answers this machine only. SIGTERM or Ctrl-C ends it.
    """
    try:
        from qo.cli import run_server  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        raise InvalidSetting("serving needs its packages: pip install 'qo-queue[web]'") from error

    title = given["title"] or call.shown_url
    start_logging(given["log_level"], as_json=given["log_json"] or call.json)
    settings = run_server.settings_of(host, title, given, None if given["no_monitor"] else monitor_settings(given))

    async def work(client: Client) -> Any:
        return await run_server.tokens_of(client)

    tokens = call.ask(work, create=True)
    run_server.check_address(host, tokens=bool(tokens.tokens), login=settings.oidc is not None)
    if not tokens.tokens and settings.oidc is None and not call.json:
        if tokens.existed:
            print_note("every token was revoked: nobody is answered before there is one (qo token create, or reset)")
        elif not settings.token_required:
            print_note("no token exists: only this machine is answered, without asking for one (qo token create)")
    run_server.serve(call.url, settings, host=host, port=port)


def print_note(text: str) -> None:
    echo(text, err=True)
