"""The provider of the package oidc-provider-mock, with PKCE demanded of every client.

Run by the Python that has the package. Authlib, which the package is made of, checks the verifier (RFC 7636), and the
package does not ask it to.
"""

from typing import Any

from authlib.oauth2.rfc6749 import InvalidRequestError
from authlib.oauth2.rfc7636 import CodeChallenge
from oidc_provider_mock import _app  # type: ignore[import-not-found,unused-ignore]
from oidc_provider_mock.__main__ import run  # type: ignore[import-not-found,unused-ignore]

_challenges: dict[str, str] = {}  # by code


class RequiredCodeChallenge(CodeChallenge):  # type: ignore[misc,unused-ignore]
    """Authlib's check, and no login without a challenge in the one way that hides the verifier."""

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        super().validate_code_challenge(grant, redirect_uri)
        if grant.request.payload.data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("a code_challenge with the method S256 is required")

    def get_authorization_code_challenge(self, authorization_code: Any) -> str | None:
        return _challenges.pop(authorization_code.code, None)

    def get_authorization_code_challenge_method(self, authorization_code: Any) -> str:  # noqa: ARG002 - Authlib's signature
        return "S256"


class CodeWithChallenge(_app.OpenIDCode):  # type: ignore[misc,unused-ignore]
    def __call__(self, grant: Any) -> None:
        super().__call__(grant)
        RequiredCodeChallenge(required=True)(grant)
        save = grant.save_authorization_code

        def save_with_challenge(code: str, request: Any) -> None:
            _challenges[code] = request.payload.data["code_challenge"]
            save(code, request)

        grant.save_authorization_code = save_with_challenge


_app.OpenIDCode = CodeWithChallenge

if __name__ == "__main__":
    run()
