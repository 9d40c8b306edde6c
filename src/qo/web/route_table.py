"""The table of routes and scopes in docs/access.md, generated from the routes. Tests compare the server with it."""

from collections.abc import Iterator
from typing import Final

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from msgspec import Struct

from qo.web.callers import IMPLIED, Caller, Scope
from qo.web.http.access import Outside
from qo.web.remote.engine import CALLS

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_FAMILIES: Final = (  # the longest first
    ("/api/v1/dashboard", "The dashboard"),
    ("/api/v1", "/api/v1"),
    ("/api/tasks", "/api/tasks"),
    ("/internal/workers", "The worker protocol"),
    ("/internal/engine", "The engine port"),
    ("", "Others"),
)


class RouteAccess(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    scope: Scope | None  # None: public
    outside: Outside | None  # None: for tokens without limits only
    note: str = ""

    def admits(self, caller: Caller) -> bool:
        """Whether the caller can use the route. The handler applies the limits."""
        if self.scope is None:
            return True
        admitted = caller.within(self.scope)
        return admitted is not None and (self.outside is not None or admitted.limits.is_whole)

    @property
    def family(self) -> str:
        return next(name for prefix, name in _FAMILIES if self.path.startswith(prefix))


def routes_of(app: Litestar) -> list[RouteAccess]:
    """All routes sorted by path, with one entry for each call of the engine port."""
    found = []
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            found += [each for method in handler.http_methods for each in _accesses(route.path, method, handler)]
    return sorted(found, key=lambda each: (each.path, _METHODS.index(each.method)))


def _accesses(path: str, method: str, handler: HTTPRouteHandler) -> Iterator[RouteAccess]:
    if method not in _METHODS:  # OPTIONS is handled by the framework
        return
    opt = handler.opt
    scope = None if opt.get("public") else Scope(opt.get("scope", Scope.ADMIN))
    path = path.replace(":str}", "}").replace(":path}", "}")
    for each in [path.replace("{call}", call) for call in CALLS] if "{call}" in path else [path]:
        yield RouteAccess(method=method, path=each, scope=scope, outside=opt.get("outside"), note=opt.get("note", ""))


def render(routes: list[RouteAccess]) -> str:
    """The page as Markdown."""
    return "\n".join([*_head(), *_tables([each for each in routes if each.scope is not None]), *_public(routes), ""])


def _head() -> Iterator[str]:
    yield "# Routes and scopes"
    yield ""
    yield "Generated from the routes by `python -m qo.web.route_table > docs/access.md`. One test compares this page"
    yield "with the code; another calls each route with each kind of token, with and without limits."
    yield ""
    yield "A `+` marks a scope that can call the route. Without a valid token the response is 401, without the scope"
    yield "403. The column `outside` shows the response to a token limited to queues or types, for tasks outside its"
    yield "limits: `404` and `left out` are the responses for tasks that do not exist, `403` rejects names in the"
    yield "request, and `never` means that no limited token can call the route."
    yield ""
    for scope in Scope:
        implied = ", ".join(f"`{each}`" for each in Scope if each in IMPLIED.get(scope, ()))
        yield f"- `{scope}`" + (f" includes {implied}" if implied else " includes no other")
    yield ""


def _tables(routes: list[RouteAccess]) -> Iterator[str]:
    for _, family in sorted(_FAMILIES, key=lambda each: (not each[0], each[1])):
        members = [each for each in routes if each.family == family]
        if members:
            yield f"## {family}"
            yield ""
            yield _row("route", *Scope, "outside", "")
            yield _row(*["---"] * (len(Scope) + 3))
            yield from (_line(each) for each in members)
            yield ""


def _line(route: RouteAccess) -> str:
    callers = [Caller(id="", name="", kind="token", scopes=frozenset([scope])) for scope in Scope]
    marks = ["+" if route.admits(caller) else "" for caller in callers]
    return _row(f"{route.method} {route.path}", *marks, route.outside or "never", route.note)


def _public(routes: list[RouteAccess]) -> Iterator[str]:
    yield "## Without a token"
    yield ""
    yield ", ".join(f"`{each.method} {each.path}`" for each in routes if each.scope is None)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    from qo.web import create_app

    print(render(routes_of(create_app("memory://"))), end="")  # noqa: T201 - this command prints the page
