"""Credentials for a page: as short-lived and as narrow as can be had.

A role assumed, or a federated session: both under a policy for this queue alone. One's own credentials only where that
is asked for: as a session, which ends in time but may do all that one may, or else as they are.
"""

import json
import os
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, NoReturn

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting, StorageError

SHORTEST = 900  # seconds a token service gives at least
_NAME = "qo-dashboard"

Kind = Literal["role", "federated", "session", "own"]


class Access(NamedTuple):
    access_key_id: str
    secret: str
    token: str
    kind: Kind
    expires_at: float | None = None  # when the store itself will refuse; None: it will not, or did not say

    @property
    def is_narrow(self) -> bool:
        """The store holds it to this queue, and to reading if that is what was asked for."""
        return self.kind in ("role", "federated")


def ending(policy: dict[str, Any], at: float) -> dict[str, Any]:
    """The policy until then: a token service gives sessions of a quarter of an hour at least.

    A denial, because some stores know no aws:CurrentTime. There a condition for what is allowed would never hold.
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
    """Credentials for so many seconds. `sts` is where tokens are given out, if that is not Amazon.

    Raises InvalidSetting if only one's own credentials could be given and `own` does not ask for that.
    """
    try:
        import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import, and rarely needed
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
    if seconds < SHORTEST:
        policy = ending(policy, now + seconds)
    client = session.client("sts", region_name=address.region, endpoint_url=sts or None)
    service = _TokenService(client, (BotoCoreError, ClientError), max(SHORTEST, int(seconds)))
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
        asked = {"RoleArn": role, "RoleSessionName": _NAME, "DurationSeconds": self.duration}
        try:
            return _access(self.client.assume_role(**asked, Policy=_text(policy)), "role")
        except self.errors as error:
            raise StorageError(f"the role {role} cannot be assumed: {error}") from error

    def federate(self, policy: dict[str, Any], sts: str) -> Access | None:
        asked = {"Name": _NAME, "DurationSeconds": self.duration}
        try:
            return _access(self.client.get_federation_token(**asked, Policy=_text(policy)), "federated")
        except self.errors as error:
            return self._nothing(sts, error)

    def session(self, sts: str) -> Access | None:
        try:
            return _access(self.client.get_session_token(DurationSeconds=self.duration), "session")
        except self.errors as error:
            return self._nothing(sts, error)

    def _nothing(self, sts: str, error: Exception) -> None:
        """Not everyone may, and not every token service can. One asked for by name must not be missing silently."""
        if sts:
            raise StorageError(f"{sts} gives out no tokens: {error}") from error


def _text(policy: dict[str, Any]) -> str:
    return json.dumps(policy, separators=(",", ":"))


def _refused(address: BucketAddress) -> NoReturn:
    raise InvalidSetting(
        f"no token service narrows credentials to {address}, so a link would carry your own, and whoever has it could "
        "do whatever you may; name a role with --role or a token service with --sts-endpoint, or, if you mean it: "
        "--own-credentials"
    )


def _expiry(found: Any) -> float | None:
    """When credentials that renew themselves would have to; botocore shows it nowhere else."""
    expiry = getattr(found, "_expiry_time", None)
    return expiry.timestamp() if isinstance(expiry, datetime) else None


def _has_sts(address: BucketAddress, sts: str) -> bool:
    """An endpoint of one's own seldom comes with a token service; Amazon knows nothing of its keys."""
    return bool(sts or os.environ.get("AWS_ENDPOINT_URL_STS")) or not address.endpoint


def _access(answer: dict[str, Any], kind: Kind) -> Access:
    given = answer["Credentials"]
    return Access(
        given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], kind, given["Expiration"].timestamp()
    )
