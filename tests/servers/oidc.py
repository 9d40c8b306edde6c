"""A real OpenID Connect provider, which checks PKCE. In an environment of its own: it brings a web framework."""

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.servers.process import find, free_ports, missing, running


class LoginPlace:
    """A running provider. Whoever is named at its form is logged in, without a password."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._client = httpx.Client(trust_env=False, verify=False)  # plain http; making certificates ready takes long

    def make_user(self, name: str, **claims: object) -> None:
        answer = self._client.put(f"{self.issuer}/users/{quote(name)}", json={"email": name, **claims})
        assert answer.status_code == 204, answer.text

    def approve(self, url: str, name: str) -> str:
        """Fill in the form that a browser is sent to; where the provider sends it then."""
        answer = self._client.post(url, data={"sub": name})
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="session")
def oidc_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginPlace]:
    program = find("oidc-provider-mock", "QO_TEST_OIDC", Path(sys.prefix) / "oidc" / "bin" / "oidc-provider-mock")
    if program is None:
        missing("the OpenID provider", "python -m venv .venv/oidc && .venv/oidc/bin/pip install oidc-provider-mock")
    (port,) = free_ports(1)
    issuer = f"http://localhost:{port}"
    python = Path(program).resolve().parent / "python"  # of the environment the package is in
    script = Path(__file__).with_name("oidc_provider.py")
    command = [str(python), str(script), "--port", str(port), "--require-nonce", "True"]
    with running(command, tmp_path_factory.mktemp("oidc"), f"{issuer}/.well-known/openid-configuration"):
        place = LoginPlace(issuer)
        yield place
        place.close()
