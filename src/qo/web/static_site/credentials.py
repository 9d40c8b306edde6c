"""Credentials for a static page, as short-lived and as restricted as possible, and the link that contains them.

Either an assumed role or a federated session, both with a policy for this queue only. The user's own credentials are
used on request only: as a session, which expires but has all permissions of the user, or else directly.

The credentials are signing keys: each is derived from the secret and signs requests to one service in one region on one
day (UTC).
"""

import hmac
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, NoReturn

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting, StorageError
from qo.web.static_site.publisher import INDEX

MIN_DURATION = 900  # seconds; the shortest session of a token service
_NAME = "qo-dashboard"

Kind = Literal["role", "federated", "session", "own"]


class Access(NamedTuple):
    access_key_id: str
    secret: str
    token: str
    kind: Kind
    expires_at: float | None = None  # when the store rejects them; None if never or unknown

    @property
    def is_narrow(self) -> bool:
        """Whether the store restricts them to this queue, and to reading if requested."""
        return self.kind in ("role", "federated")


def ending(policy: dict[str, Any], at: float) -> dict[str, Any]:
    """The policy with an end, for links shorter than the shortest session of a token service.

    It is a Deny statement, because some stores do not support aws:CurrentTime: a condition on an Allow statement would
    never match there.
    """
    over = {
        "Effect": "Deny",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {"DateGreaterThan": {"aws:CurrentTime": f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"}},
    }
    return {**policy, "Statement": [*policy["Statement"], over]}


def obtain(
    address: BucketAddress,
    policy: dict[str, Any],
    *,
    now: float,
    seconds: float,
    role: str = "",
    sts: str = "",
    own: bool = False,
) -> Access:
    """Credentials for a number of seconds. `sts` is the endpoint of the token service, if it is not Amazon's.

    Raises InvalidSetting if only the user's own credentials are available and `own` is False.
    """
    try:
        import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import, rarely needed
        from botocore.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
            BotoCoreError,
            ClientError,
        )
    except ImportError as error:
        raise InvalidSetting("this needs boto3: pip install 'qo-queue[s3]'") from error
    session = boto3.Session()
    try:
        found = session.get_credentials()
    except BotoCoreError as error:
        raise StorageError(f"the credentials for {address} cannot be read: {error}") from error
    if found is None:
        raise StorageError(
            f"there are no credentials for {address}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"
        )
    mine = found.get_frozen_credentials()
    given = Access(mine.access_key, mine.secret_key, mine.token or "", "own", _expiry(found))
    if not role and (given.token or not _has_sts(address, sts)):
        return given if own else _refused(address)
    if seconds < MIN_DURATION:
        policy = ending(policy, now + seconds)
    client = session.client("sts", region_name=address.region, endpoint_url=sts or None)
    service = _TokenService(client, (BotoCoreError, ClientError), max(MIN_DURATION, int(seconds)))
    if role:
        return service.assume(role, policy)
    if own:
        return service.session(sts) or given
    return service.federate(policy, sts) or _refused(address)


class _TokenService(NamedTuple):
    client: Any
    errors: tuple[type[Exception], ...]
    duration: int  # seconds

    def assume(self, role: str, policy: dict[str, Any]) -> Access:
        requested = {"RoleArn": role, "RoleSessionName": _NAME, "DurationSeconds": self.duration}
        try:
            return _access(self.client.assume_role(**requested, Policy=_text(policy)), "role")
        except self.errors as error:
            raise StorageError(f"the role {role} cannot be assumed: {error}") from error

    def federate(self, policy: dict[str, Any], sts: str) -> Access | None:
        requested = {"Name": _NAME, "DurationSeconds": self.duration}
        try:
            return _access(self.client.get_federation_token(**requested, Policy=_text(policy)), "federated")
        except self.errors as error:
            return self._nothing(sts, error)

    def session(self, sts: str) -> Access | None:
        try:
            return _access(self.client.get_session_token(DurationSeconds=self.duration), "session")
        except self.errors as error:
            return self._nothing(sts, error)

    def _nothing(self, sts: str, error: Exception) -> None:
        """A missing permission or feature is no error, unless the token service was named explicitly."""
        if sts:
            raise StorageError(f"{sts} does not issue tokens: {error}") from error


def _text(policy: dict[str, Any]) -> str:
    return json.dumps(policy, separators=(",", ":"))


def _refused(address: BucketAddress) -> NoReturn:
    raise InvalidSetting(
        f"no token service can restrict credentials to {address}, so the link would contain your own credentials with "
        "all their permissions; use a role (--role) or a token service (--sts-endpoint), or accept this with "
        "--own-credentials"
    )


def _expiry(found: Any) -> float | None:
    """The expiry of refreshable credentials, which botocore has no public attribute for."""
    expiry = getattr(found, "_expiry_time", None)
    return expiry.timestamp() if isinstance(expiry, datetime) else None


def _has_sts(address: BucketAddress, sts: str) -> bool:
    """A custom endpoint rarely has a token service, and Amazon does not know its keys."""
    return bool(sts or os.environ.get("AWS_ENDPOINT_URL_STS")) or not address.endpoint


def _access(answer: dict[str, Any], kind: Kind) -> Access:
    given = answer["Credentials"]
    return Access(
        given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], kind, given["Expiration"].timestamp()
    )


class Link(Struct, frozen=True):
    page: str
    code: str  # the credentials, for the fragment or to paste
    expires_at: float
    dates: tuple[str, ...]  # the days (UTC) of the signing keys

    @property
    def url(self) -> str:
        return f"{self.page}#{self.code}"


def make_link(
    address: BucketAddress, access: Access, *, page: str, layout: str, write: bool, now: float, until: float
) -> Link:
    """The link that opens the page, without the secret itself. `credentials.js` reads it.

    Its fragment contains credentials, which browsers do not send but keep in the history.
    """
    expires_at = min(until, access.expires_at or until)
    keys = signing_keys(access.secret, address.region, start=now, end=expires_at)
    said: dict[str, Any] = {
        "k": access.access_key_id,
        "t": access.token,
        "d": keys,
        "e": int(expires_at),
        "w": write,
        "r": address.region,
        "u": address.endpoint,
        "b": address.bucket,
        "p": address.prefix,
        "l": layout,
    }
    text = json.dumps({name: value for name, value in said.items() if value not in ("", False)}, separators=(",", ":"))
    return Link(f"{page}{INDEX}", urlsafe_b64encode(text.encode()).decode(), expires_at, tuple(keys))


SERVICE = "s3"


def signing_key(secret: str, date: str, region: str, service: str = SERVICE) -> str:
    """The signing key of Signature Version 4, as hex. The secret cannot be derived from it."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def signing_keys(secret: str, region: str, *, start: float, end: float) -> dict[str, str]:
    """The keys of all days from `start` to `end`."""
    return {date: signing_key(secret, date, region) for date in _dates(start, end)}


def _dates(start: float, end: float) -> Iterator[str]:
    day, last = (datetime.fromtimestamp(instant, UTC).date() for instant in (start, end))
    while day <= last:
        yield f"{day:%Y%m%d}"
        day += timedelta(days=1)
