"""The dashboard's files: where they are, what they are, and that nothing else can be fetched there."""

import logging
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import httpx
import pytest
from litestar import Litestar

from qo.web.pages import FOLDER, read_assets
from tests.web.serving import Served


def test_the_front_door_leads_to_the_page(one_server: Served):
    answer = one_server.client.get("/")
    assert answer.status_code == 307 and answer.headers["location"] == "ui/"
    bare = one_server.client.get("/ui")
    assert bare.status_code == 307 and bare.headers["location"] == "ui/"
    page = one_server.client.get("/", follow_redirects=True)
    assert page.status_code == 200 and page.url.path == "/ui/" and "<!doctype html>" in page.text
    assert page.headers["content-type"].startswith("text/html")


def test_the_policy_is_strict(one_server: Served):
    policy = one_server.client.get("/ui/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
    assert "unsafe" not in policy
    for rule in ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "report-uri reports"):
        assert rule in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy


def test_every_file_has_its_type_and_is_revalidated(one_server: Served):
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    for name, asset in read_assets().items():
        answer = one_server.client.get(f"/ui/{name}")
        assert answer.status_code == 200 and answer.content == asset.body, name
        assert answer.headers["content-type"].startswith(types.get(Path(name).suffix, "application/json"))
        assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-content-type-options"] == "nosniff"
        again = one_server.client.get(f"/ui/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "../pages.py",
        "..%2fpages.py",
        "%2e%2e/pages.py",
        "sources/README.md",
        "nothing.js",
        "/etc/passwd",
        "views/",
        "x" * 5000,
    ],
)
def test_nothing_else_is_a_file(one_server: Served, path: str):
    answer = one_server.client.get(httpx.URL(f"{one_server.url}/ui/{path}"))
    assert answer.status_code in (400, 404)


def test_what_files_refer_to_is_there():
    assets = read_assets()
    for name, asset in assets.items():
        text = asset.body.decode()
        here = Path(name).parent
        if name.endswith(".js"):
            found = re.findall(r"(?:from|import) '(\.[^']+)'", text) + re.findall(r"import\('(\.[^']+)'\)", text)
        else:
            found = re.findall(r'(?:src|href)="([^"#]+)"', text) if name.endswith(".html") else []
        for reference in found:
            target = (FOLDER / here / reference).resolve().relative_to(FOLDER).as_posix()
            assert target in assets or target == "sources/bucket.js", f"{name} refers to {reference}"


def test_no_file_makes_markup_of_text_or_asks_others():
    # DOMParser: what a store answers, as a document of its own that is never shown
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write(ln)?\(|\beval\(|new Function"
        r"|DOMParser(?!\(\)\.parseFromString\(policy \? policy\.createHTML\(text\) : text, 'application/xml'\))"
        r"|localStorage|sessionStorage|document\.cookie|indexedDB"
        r"|https?://(?!www\.w3\.org/|\$\{)"  # a store's own address is made of what its link says
    )
    for name, asset in read_assets().items():
        assert not banned.search(asset.body.decode()), name
    page = read_assets()["index.html"].body.decode()
    assert "<style" not in page and " style=" not in page and not re.search(r"<script(?![^>]*src=)", page)


@pytest.fixture
def restored_root_log() -> Iterator[None]:
    """Litestar configures the root logger, and would print the log of all later tests in this process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("restored_root_log")
async def test_it_can_be_mounted_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mounted_as_said.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    outer: Litestar = import_module("mounted_as_said").app
    transport = httpx.ASGITransport(app=outer)  # type: ignore[arg-type]
    async with outer.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = await client.get("/queue/")
        assert first.status_code == 307 and first.headers["location"] == "ui/"
        assert (await client.get("/queue/ui/")).status_code == 200
        assert (await client.get("/queue/ui/parts/dom.js")).status_code == 200
        assert (await client.get("/queue/api/v1/dashboard/session")).json()["title"] == "mail"
