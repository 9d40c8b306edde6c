"""The server: REST APIs, the dashboard, the worker protocol, tokens, health checks, live updates."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.web.app import create_app
    from qo.web.http.settings import Level, WebSettings
else:  # commands that manage tokens and buckets import modules of this package without the packages of the server
    __getattr__ = lazy_names(__name__, {"qo.web.app": "create_app", "qo.web.http.settings": "Level WebSettings"})

__all__ = ["Level", "WebSettings", "create_app"]
