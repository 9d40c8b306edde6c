"""Runs what `qo serve` was asked for."""

import asyncio
import ipaddress
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from qo.cli.gathered_logs import gather_logs
from qo.cli.server_limits import limits_of, within_descriptors
from qo.client import Client
from qo.errors import InvalidSetting
from qo.monitor import MonitorSettings
from qo.web import WebSettings, create_app
from qo.web.http.access import is_loopback
from qo.web.http.connections import server_config
from qo.web.http.settings import read_priorities
from qo.web.http.tokens import Tokens, read_tokens
from qo.web.oidc.settings import OidcSettings, check_oidc, parse_roles

log = logging.getLogger("qo.web")
GRACE = 5  # seconds requests have to end, listeners included


def settings_of(host: str, title: str, given: dict[str, Any], monitor: MonitorSettings | None) -> WebSettings:
    oidc = oidc_settings(given)
    settings = WebSettings(
        hosts=(
            *given["hosts"],
            *((in_header(host),) if not _is_any(host) and not is_loopback(host) else ()),
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
    """None: nobody logs in, and tokens alone count."""
    if not given["oidc_issuer"]:
        if given["oidc_client_id"] or given["oidc_roles"]:
            raise InvalidSetting("--oidc-client-id and --oidc-role need --oidc-issuer, the URL of the provider")
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
    """The name browsers come back to from the provider."""
    host = urlsplit(oidc.public_url).hostname if oidc is not None else None
    return () if host is None or is_loopback(host) else (in_header(host),)


async def tokens_of(client: Client) -> Tokens:
    return await read_tokens(client.engine)


def check_address(host: str, *, tokens: bool, login: bool = False) -> None:
    if not tokens and not login and not is_loopback(host):
        raise InvalidSetting(
            f"without a token only this machine may call, so --host {host} is refused; "
            "create one first: qo token create --name NAME --scopes admin"
        )


def serve(url: str, settings: WebSettings, *, host: str, port: int) -> None:
    app = create_app(url, settings=settings)
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
        timeout_graceful_shutdown=GRACE,
    )
    listening = config.bind_socket()
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small answers wait 40 ms without uvloop
    _QoServer(config).run(sockets=[listening])


class _QoServer(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where it serves once it does."""
        self._writing = asyncio.create_task(gather_logs().run())
        await super().startup(sockets=sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            log.info("serving at http://%s:%d/", in_header(host), port, extra={"host": host, "port": port})


def in_header(host: str) -> str:
    """An address as it stands in a Host header."""
    return f"[{host}]" if ":" in host else host.lower()


def _is_any(host: str) -> bool:
    """0.0.0.0 is a place to listen at, and no name anyone calls."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
