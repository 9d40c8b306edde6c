"""The files of the dashboard under `/ui/`, read once at startup. `/` redirects to them."""

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.datastructures import State
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.types import HTTPScope, Send
from msgspec import Struct
from prometheus_client import Counter

from qo.web.http.access import PUBLIC
from qo.web.stats.server_metrics import metrics_of

FOLDER: Final = Path(__file__).with_name("dashboard")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; report-uri reports"
)
CONFIG: Final = {"source": "api", "api": "../api/v1/"}
LOGIN: Final = {"login": "../auth/login", "logout": "../auth/logout"}
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_INDEX: Final = "index.html"
_PATH_PREFIX: Final = "/ui/"


class Asset(Struct, frozen=True):
    body: bytes
    media_type: str
    etag: str

    def headers(self) -> dict[str, str]:
        """Browsers revalidate every file, so that files of two versions are never mixed."""
        return {"etag": self.etag, "cache-control": "no-cache", "content-security-policy": POLICY}

    def known_to(self, if_none_match: str) -> bool:
        return self.etag in [each.strip().removeprefix("W/") for each in if_none_match.split(",")]


def _asset(name: str, body: bytes) -> Asset:
    return Asset(body, _TYPES[Path(name).suffix], f'"{sha256(body).hexdigest()[:20]}"')


def read_assets(*, has_login: bool = False) -> dict[str, Asset]:
    """All files by name. Requests are looked up here, so nothing a caller sends becomes a path."""
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in _TYPES}
    assets = {name: _asset(name, path.read_bytes()) for name, path in files.items()}
    return assets | {"config.json": _asset("config.json", msgspec.json.encode(CONFIG | (LOGIN if has_login else {})))}


class Files:
    """Serves the files without routing: a page consists of about thirty files."""

    def __init__(self, *, has_login: bool = False) -> None:
        self._assets = read_assets(has_login=has_login)

    def find(self, scope: HTTPScope) -> Asset | None:
        """The file of the request; None if the routes handle it."""
        if scope["method"] != "GET":
            return None
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._assets.get(path[len(_PATH_PREFIX) :]) if path.startswith(_PATH_PREFIX) else None

    @staticmethod
    async def send(asset: Asset, scope: HTTPScope, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"if-none-match"), b"").decode("latin-1")
        same = asset.known_to(given)
        headers = [(name.encode(), value.encode()) for name, value in asset.headers().items()]
        if not same:
            headers += [
                (b"content-type", f"{asset.media_type}; charset=utf-8".encode()),
                (b"content-length", str(len(asset.body)).encode()),
            ]
        await send({"type": "http.response.start", "status": 304 if same else 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if same else asset.body, "more_body": False})


def assets_of(state: State) -> dict[str, Asset]:
    assets: dict[str, Asset] | None = state.get("assets")
    if assets is None:
        assets = state["assets"] = read_assets()
    return assets


@get("/", opt=PUBLIC, include_in_schema=False)
async def redirect_to_dashboard() -> Response[bytes]:
    return _redirect("ui/")


def _redirect(place: str) -> Response[bytes]:
    """A relative redirect works wherever the application is mounted."""
    return Response(b"", status_code=307, headers={"Location": place}, media_type="text/plain")


@get(["/ui", "/ui/{name:path}"], opt=PUBLIC, include_in_schema=False)
async def show_file(request: Request[Any, Any, Any], name: FromPath[str] = "") -> Response[bytes]:
    """The page itself, and 404 for unknown files."""
    if not name and not request.scope["raw_path"].endswith(b"/"):
        return _redirect("ui/")  # relative links of the page need the slash
    reports_of(request.app.state)  # creates the counter: Prometheus needs it before the first report
    asset = assets_of(request.app.state).get(name.strip("/") or _INDEX)
    if asset is None:
        raise NotFoundException(f"the dashboard has no file {name!r:.80}")
    same = asset.known_to(request.headers.get("if-none-match", ""))
    body, status = (b"", 304) if same else (asset.body, 200)
    return Response(body, status_code=status, headers=asset.headers(), media_type=asset.media_type)


@post("/ui/reports", opt=PUBLIC, status_code=204, include_in_schema=False)
async def report(request: Request[Any, Any, Any]) -> None:
    """Counts reports of browsers about the content security policy (`dashboard_csp_reports_total`)."""
    reports_of(request.app.state).inc()


def reports_of(state: State) -> Counter:
    counter: Counter | None = state.get("csp_reports")
    if counter is None:
        registry = metrics_of(state).registry
        counter = Counter(
            "dashboard_csp_reports_total",
            "Scripts or styles that browsers blocked on the dashboard.",
            registry=registry,
        )
        state["csp_reports"] = counter
    return counter


router = Router(path="/", route_handlers=[redirect_to_dashboard, show_file, report])
