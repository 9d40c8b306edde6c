"""The HTTP face: two REST dialects over one queue, tokens, health, live updates."""

from qo.web.app import create_app
from qo.web.http.settings import Level, WebSettings

__all__ = ["Level", "WebSettings", "create_app"]
