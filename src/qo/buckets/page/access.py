"""Credentials for a page: as short-lived and as narrow as can be had.

In this order: a role assumed, or a federated session, both under a policy for this queue alone; a session of one's own,
which ends in time but may do all that one may; the credentials as they are.
"""

import json
import os
from typing import Any, Literal, NamedTuple

from qo.buckets.address import Address
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


def obtain(address: Address, policy: dict[str, Any], *, seconds: float, role: str = "", sts: str = "") -> Access:
    """`sts` is where tokens are given out, if that is not Amazon."""
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
    own = found.get_frozen_credentials()
    given = Access(own.access_key, own.secret_key, own.token or "", "own")
    if not role and (given.token or not _has_sts(address, sts)):
        return given
    client = session.client("sts", region_name=address.region, endpoint_url=sts or None)
    text, duration = json.dumps(policy, separators=(",", ":")), max(SHORTEST, int(seconds))
    if role:
        try:
            answer = client.assume_role(RoleArn=role, RoleSessionName=_NAME, Policy=text, DurationSeconds=duration)
        except (BotoCoreError, ClientError) as error:
            raise StorageError(f"the role {role} cannot be assumed: {error}") from error
        return _access(answer, "role")
    try:
        return _access(client.get_federation_token(Name=_NAME, Policy=text, DurationSeconds=duration), "federated")
    except (BotoCoreError, ClientError):
        pass  # not everyone may, and not every token service can
    try:
        return _access(client.get_session_token(DurationSeconds=duration), "session")
    except (BotoCoreError, ClientError) as error:
        if sts:  # asked for by name: what was expected of it must not be missing silently
            raise StorageError(f"{sts} gives out no tokens: {error}") from error
        return given


def _has_sts(address: Address, sts: str) -> bool:
    """An endpoint of one's own seldom comes with a token service; Amazon knows nothing of its keys."""
    return bool(sts or os.environ.get("AWS_ENDPOINT_URL_STS")) or not address.endpoint


def _access(answer: dict[str, Any], kind: Kind) -> Access:
    given = answer["Credentials"]
    return Access(
        given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], kind, given["Expiration"].timestamp()
    )
