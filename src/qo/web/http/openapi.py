"""The description of the API: OpenAPI at /openapi.json, and a page without scripts at /docs."""

import html
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any

from litestar import Request, Response, Router, get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Meta

from qo import __version__
from qo.web.http.access import PUBLIC

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222 }
code, b { font-family: ui-monospace, monospace } section { border-top: 1px solid #ccc; padding: .5rem 0 }
.post { color: #067 } .get { color: #262 } .delete { color: #922 } b { display: inline-block; min-width: 4.5rem }
ul { margin: .2rem 0 } p { margin: .2rem 0 } .scope { float: right; color: #777 }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } section { border-color: #444 } }
"""
_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"
_METHODS = ("get", "post", "put", "patch", "delete")


class DocsPage(OpenAPIRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - Litestar's
        return render(openapi_schema).encode()


def description() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="qo",
        version=__version__,
        description="A task queue that needs no broker. /api/v1 is the main API, /api/tasks the management API.",
        use_handler_docstrings=True,
        security=[{}, {"bearer": []}],  # local requests need no token while the server has none
        components=Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}),
        openapi_router=Router(
            path="/docs",
            route_handlers=[],
            opt=PUBLIC,
            include_in_schema=False,
            response_headers={"Content-Security-Policy": _POLICY},
        ),
        render_plugins=[DocsPage(path="/")],
    )


@get("/openapi.json", opt=PUBLIC, include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    document: bytes = request.app.state.openapi_document()
    return Response(document, media_type="application/json")


router = Router(path="/", route_handlers=[openapi])


def render(schema: dict[str, Any]) -> str:
    """The page as HTML. All texts of the schema are escaped."""
    info = schema["info"]
    body = "".join(_operation(*each) for each in _operations(schema))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_text(info['title'])}</title><style>{STYLE}</style>"
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info.get('description', ''))}</p>"
        f"<p>As OpenAPI: <a href='/openapi.json'>/openapi.json</a></p>{body}"
    )


def _operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in sorted(schema["paths"].items()):
        yield from ((method, path, item[method]) for method in _METHODS if method in item)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{_text(each['name'])}</code> in {_text(each['in'])}{' (required)' if each.get('required') else ''}"
        for each in operation.get("parameters", ())
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    responses = ", ".join(f"<code>{_text(status)}</code>" for status in operation.get("responses", {}))
    return (
        f"<section><p><b class={method}>{method.upper()}</b> <code>{_text(path)}</code></p>"
        f"<p>{_text(operation.get('description', ''))}</p><ul>{parameters}</ul>"
        f"{f'<p>body: <code>{_text(_name(body))}</code></p>' if body else ''}<p>responses: {responses}</p></section>"
    )


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "object")).rpartition("/")[2]


def _text(value: object) -> str:
    return html.escape(str(value))


def _said(**schema: Any) -> Meta:
    return Meta(extra_json_schema={"extra": schema})


Name = Annotated[str, _said(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
BatchName = Annotated[str, _said(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$")]
TypeName = Annotated[str, _said(pattern="^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,254}$")]
Seconds = Annotated[float, _said(exclusiveMinimum=0, maximum=3_200_000_000)]
Retries = Annotated[int, _said(minimum=0, maximum=10_000)]
Attempts = Annotated[int, _said(minimum=1, maximum=10_000)]
Key = Annotated[str, _said(minLength=1, maxLength=256)]
Instant = Annotated[str, _said(format="date-time")]
Rate = Annotated[float, _said(minimum=0)]
