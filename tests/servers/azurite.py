"""Azurite: Azure's blobs on loopback, by npm. The account and its key are public, the same for everyone."""

import base64
import hashlib
import hmac
import shutil
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from tests.servers.process import ROOT, find, free_ports, missing, running

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
API = "2021-08-06"


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its endpoint. There is a container `plain`."""
    program = find("azurite", "QO_TEST_AZURITE", ROOT / "node_modules" / ".bin" / "azurite")
    if program is None and shutil.which("npm") is None:
        pytest.skip("Azurite comes by npm, and there is none here")
    if program is None:
        missing("Azurite", "npm install azurite")
    folder = tmp_path_factory.mktemp("azurite")
    port, queue, table = map(str, free_ports(3))
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [program, "--blobPort", port, "--queuePort", queue, "--tablePort", table]
    command += ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    # A connection that the server closes while a request is on its way looks like a lost answer. `azurite-blob`, which
    # starts no queues and tables, ignores this option.
    command += ["--blobKeepAliveTimeout", "600"]
    with running(command, folder, endpoint):
        _make_container(endpoint, "plain")
        yield endpoint


def _make_container(endpoint: str, name: str) -> None:
    """Creating a container is the one call for which we would need Azure's own library."""
    date = formatdate(usegmt=True)
    about = f"x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + about
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    headers = {
        "x-ms-date": date,
        "x-ms-version": API,
        "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=10):
        return
