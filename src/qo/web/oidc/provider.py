"""The OpenID Connect provider, through Authlib: its login URL, and the identity of a user who returns.

Every rejection is a `LoginRefused` with one of a few problems, for which the page has a text. Details are only logged.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from qo.clock import Clock
from qo.web.oidc.login import Identity, LoginAttempt, LoginRefused
from qo.web.oidc.settings import OidcSettings

# Signatures that only the provider can create: not `none`, and none that uses the client secret.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TIMEOUT = 10.0  # seconds without data from the provider
_TOTAL_TIMEOUT = 20.0  # seconds for all requests of one step, even if the provider keeps sending single bytes
_LEEWAY = 60  # seconds by which the clocks may differ
_METADATA_LIFETIME = 3600.0  # seconds
MAX_LOGINS = 50  # concurrent logins; anyone can start one, and each uses a connection
_MAX_NAME = 128  # characters
_MAX_OWN_NAME = 50  # characters


class OidcProvider:
    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._metadata: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._logins = 0  # in progress

    async def login_url(self, attempt: LoginAttempt, redirect_uri: str) -> str:
        with self._one_more_login():
            metadata = await self._read_metadata()
        async with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.code_verifier,
            )
        return str(url)

    async def identify(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> Identity:
        """The user for whom the provider issued the code. Raises LoginRefused."""
        with self._one_more_login():
            try:
                async with asyncio.timeout(_TOTAL_TIMEOUT):
                    claims = await self._redeem(code, attempt, redirect_uri)
            except TimeoutError as error:
                raise LoginRefused("provider_down", f"{self._settings.issuer} took too long") from error
        return self.identity_of(claims)

    async def _redeem(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> dict[str, Any]:
        """The claims of the provider about the user."""
        metadata = await self._read_metadata()
        async with self._client(redirect_uri) as client:
            try:
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=attempt.code_verifier,
                )
                claims = await self.read_claims(token, attempt.nonce)
                if self._settings.groups_claim not in claims and metadata.get("userinfo_endpoint"):
                    claims = {**await self._user_info(client, metadata, claims["sub"]), **claims}
            except httpx2.HTTPError as error:
                raise LoginRefused("provider_down", f"{self._settings.issuer} did not answer: {error!r}") from error
            except (AuthlibBaseError, JoseError, ValueError, KeyError, TypeError) as error:
                detail = f"{self._settings.issuer} gave no valid identity: {type(error).__name__}: {error}"
                raise LoginRefused("invalid", detail) from error
        return claims

    async def logout_url(self, redirect_uri: str) -> str | None:
        """The URL that ends the session at the provider; None if the provider has none."""
        end: str | None = (await self._read_metadata()).get("end_session_endpoint")
        if end is None:
            return None
        query = {"client_id": self._settings.client_id, "post_logout_redirect_uri": redirect_uri}
        return str(httpx2.URL(end).copy_merge_params(query))

    def _client(self, redirect_uri: str) -> Any:
        return AsyncOAuth2Client(
            client_id=self._settings.client_id,
            client_secret=self._settings.client_secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._settings.client_secret else "none",
            scope=" ".join(self._settings.scopes),
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT,
        )

    async def read_claims(self, token: dict[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, after validation of signature, issuer, audience, times and nonce."""
        try:
            decoded = self._decoded(token["id_token"])
        except InvalidKeyIdError:  # the provider has rotated its keys
            await self._read_metadata(again=True)
            decoded = self._decoded(token["id_token"])
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "values": [self._settings.issuer]},
                "aud": {"essential": True, "values": [self._settings.client_id]},
            },
            {"nonce": nonce, "client_id": self._settings.client_id, "access_token": token.get("access_token")},
        )
        claims.validate(now=int(self._clock()), leeway=_LEEWAY)
        return dict(claims)

    def _decoded(self, id_token: str) -> jwt.Token:
        named = self._metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        allowed = [name for name in _ALGORITHMS if name in named]
        if self._keys is None:
            raise ValueError("the provider has no keys")
        if not allowed:  # an empty list would allow the defaults of the library
            raise ValueError(f"the provider supports none of the algorithms {', '.join(_ALGORITHMS)}")
        return jwt.decode(id_token, self._keys, registry=JWSRegistry(algorithms=allowed, strict_check_header=False))

    async def _user_info(self, client: Any, metadata: dict[str, Any], subject: str) -> dict[str, Any]:
        """Claims of the userinfo endpoint. Some providers return groups only there."""
        answer = await client.get(metadata["userinfo_endpoint"])
        answer.raise_for_status()
        user_info: dict[str, Any] = answer.json()
        if user_info.get("sub") != subject:
            raise ValueError("the user info is about another user")
        return user_info

    def identity_of(self, claims: dict[str, Any]) -> Identity:
        groups = claims.get(self._settings.groups_claim)
        if isinstance(groups, str):
            groups = [groups]
        return Identity(
            subject=str(claims["sub"])[:_MAX_NAME],
            name=_name_in(claims)[:_MAX_NAME],
            groups=tuple(str(group) for group in groups) if isinstance(groups, list) else (),
        )

    @contextmanager
    def _one_more_login(self) -> Iterator[None]:
        if self._logins >= MAX_LOGINS:
            raise LoginRefused("provider_down", f"{self._logins} logins already wait for {self._settings.issuer}")
        self._logins += 1
        try:
            yield
        finally:
            self._logins -= 1

    async def _read_metadata(self, *, again: bool = False) -> dict[str, Any]:
        """Concurrent callers share one read and its failure."""
        if again or not 0 <= self._clock() - self._read_at < _METADATA_LIFETIME:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return self._metadata

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_TOTAL_TIMEOUT):
                await self._discover()
        except (TimeoutError, httpx2.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
            raise LoginRefused("provider_down", f"{self._settings.issuer} cannot be used: {error!r}") from error
        self._read_at = self._clock()

    async def _discover(self) -> None:
        issuer = self._settings.issuer
        async with httpx2.AsyncClient(timeout=_TIMEOUT) as client:
            found = await client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            found.raise_for_status()
            metadata = found.json()
            if metadata["issuer"] != issuer:
                raise ValueError(f"its issuer is {metadata['issuer']!r:.200}; set --oidc-issuer to exactly that")
            keys = await client.get(metadata["jwks_uri"])
            keys.raise_for_status()
        self.trust(KeySet.import_key_set(keys.json()), metadata)

    def trust(self, keys: KeySet, metadata: dict[str, Any]) -> None:
        """Verify the tokens of further logins with these keys."""
        self._keys, self._metadata = keys, metadata


def _name_in(claims: dict[str, Any]) -> str:
    """The name for the audit trail. A name that users choose themselves is shown with the subject."""
    subject = str(claims["sub"])
    if claims.get("email") and claims.get("email_verified") not in (False, "false"):
        return str(claims["email"])
    if claims.get("preferred_username"):
        return str(claims["preferred_username"])
    return f"{str(claims['name'])[:_MAX_OWN_NAME]} ({subject})" if claims.get("name") else subject
