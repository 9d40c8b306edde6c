"""The server: REST APIs, the dashboard, the worker protocol, tokens, health checks, live updates."""

from qo.web.app import create_app
from qo.web.http.settings import Level, WebSettings

__all__ = ["Level", "WebSettings", "create_app"]
