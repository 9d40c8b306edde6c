"""Runs the server of `qo serve` with the settings of its options."""

import asyncio
import ipaddress
import logging
import socket
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from msgspec.structs import replace

from qo.client import Client, Settings, connect
from qo.encryption import Encrypted
from qo.errors import InvalidSetting, NewerFormat
from qo.monitor import MonitorSettings
from qo.web import WebSettings, create_app
from qo.web.http.access import is_loopback
from qo.web.http.connections import server_config
from qo.web.http.settings import MEBIBYTE, ServerLimits, read_priorities
from qo.web.http.tokens import Tokens, read_tokens
from qo.web.oidc.settings import OidcSettings, check_oidc, parse_roles

log = logging.getLogger("qo.web")
_SHUTDOWN_TIMEOUT = 5  # seconds for open requests, event streams included
_SPARE_DESCRIPTORS = 128  # for the store, the log and everything else that is not a client's connection
_FLUSH_INTERVAL = 0.1  # seconds between writes of the log
_MAX_BUFFERED_LINES = 500


def settings_of(host: str, title: str, given: dict[str, Any], monitor: MonitorSettings | None) -> WebSettings:
    oidc = oidc_settings(given)
    settings = WebSettings(
        hosts=(
            *given["hosts"],
            *((host_header(host),) if not _is_unspecified(host) and not is_loopback(host) else ()),
            *_public_hosts(oidc),
        ),
        origins=given["origins"],
        token_required=given["token_required"] or bool(given["hosts"]) or not is_loopback(host) or oidc is not None,
        rate_limit=given["rate_limit"],
        limits=within_descriptors(limits_of(given)),
        title=title,
        monitor=monitor,
        oidc=oidc,
    )
    path = given["priority_config"]
    return settings if path is None else read_priorities(path, settings)


def oidc_settings(given: dict[str, Any]) -> OidcSettings | None:
    """The settings for logins, or None if the server accepts tokens only."""
    if not given["oidc_issuer"]:
        if given["oidc_client_id"] or given["oidc_roles"]:
            raise InvalidSetting("--oidc-client-id and --oidc-role require --oidc-issuer, the URL of the provider")
        return None
    mapped = parse_roles(given["oidc_roles"])
    return check_oidc(
        OidcSettings(
            issuer=given["oidc_issuer"],
            client_id=given["oidc_client_id"] or "",
            client_secret=given["oidc_client_secret"] or "",
            public_url=(given["public_url"] or "").rstrip("/"),
            scopes=tuple(given["oidc_scopes"]),
            groups_claim=given["oidc_groups_claim"],
            roles=mapped.roles,
            limited_roles=mapped.limited_roles,
            session_lifetime=given["oidc_session"],
        )
    )


def _public_hosts(oidc: OidcSettings | None) -> tuple[str, ...]:
    """The host name to which the provider redirects browsers."""
    host = urlsplit(oidc.public_url).hostname if oidc is not None else None
    return () if host is None or is_loopback(host) else (host_header(host),)


async def tokens_of(client: Client) -> Tokens:
    return await read_tokens(client.engine)


def check_address(host: str, *, tokens: bool, login: bool = False) -> None:
    if not tokens and not login and not is_loopback(host):
        raise InvalidSetting(
            f"--host {host} would accept requests from other machines without a token; "
            "create a token first: qo token create --name NAME --scopes admin"
        )


def serve(url: str, settings: WebSettings, *, host: str, port: int) -> None:
    """Serve until a signal. Raises NewerFormat when a newer qo has upgraded the store."""
    outdated: list[NewerFormat] = []

    def end(error: NewerFormat) -> None:
        outdated.append(error)
        server.should_exit = True

    client = connect(url, Settings(ageing=settings.ageing), codec=Encrypted.from_environment())
    app = create_app(client, settings=settings, on_outdated=end)
    config = server_config(
        app,
        settings.limits,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
    )
    listener = config.bind_socket()
    # Without uvloop, Nagle's algorithm delays small responses by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = _QoServer(config)
    server.run(sockets=[listener])
    if outdated:
        raise outdated[0]


class _QoServer(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Log the address once the server listens."""
        self._log_writer = asyncio.create_task(buffer_logs().run())
        await super().startup(sockets=sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            log.info("serving at http://%s:%d/", host_header(host), port, extra={"host": host, "port": port})


def host_header(host: str) -> str:
    """A host as it is written in a Host header."""
    return f"[{host}]" if ":" in host else host.lower()


def _is_unspecified(host: str) -> bool:
    """0.0.0.0 and :: are addresses to listen on, not names that clients use."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def limits_of(given: dict[str, Any]) -> ServerLimits:
    return ServerLimits(
        max_connections=given["max_connections"],
        max_header_size=given["max_header_size"],
        header_timeout=given["header_timeout"],
        idle_timeout=given["idle_timeout"],
        request_timeout=given["request_timeout"],
        max_upload_memory=given["max_upload_memory"] * MEBIBYTE,
        max_unsent_memory=given["max_unsent_memory"] * MEBIBYTE,
    )


def within_descriptors(limits: ServerLimits) -> ServerLimits:
    """Raise the limit of open files for these connections, or reduce the connections to what the limit allows."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.max_connections + _SPARE_DESCRIPTORS
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            max_connections = max(1, soft - _SPARE_DESCRIPTORS)
            log.warning(
                "accepting at most %d connections: the limit of open files is %d (ulimit -n)", max_connections, soft
            )
            return replace(limits, max_connections=max_connections)
    return limits


# --- the log


class BufferedLogHandler(logging.Handler):
    """Writes the lines of each 0.1 s in one call. A warning is written immediately, and the rest at exit.

    A write per line releases the GIL each time, and a busy server spent a third of its time reacquiring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING or len(self._lines) >= _MAX_BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError):  # a server answers requests even if nothing can be written to its log
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()

    async def run(self) -> None:
        while True:
            self.flush()
            await asyncio.sleep(_FLUSH_INTERVAL)


def buffer_logs() -> BufferedLogHandler:
    """Replace the handlers that write each line; keep their format.

    The lines do not show the thread, the process or the line of code, so logging does not determine them: a server logs
    two lines for each submitted task. No other code runs in this process that could need them.
    """
    logging._srcfile = None  # noqa: SLF001 - documented in the HOWTO of logging
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    log = logging.getLogger("qo")
    buffered = BufferedLogHandler()
    if log.handlers:
        buffered.setFormatter(log.handlers[0].formatter)
    log.handlers[:] = [buffered]
    return buffered
