"""The driver's store for an address: S3 and its kin, Google, Azure. Its own retries are off: a conditional write whose
answer was lost would look like a conflict on its second try."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.store import AzureStore, GCSStore, S3Store

from qo.buckets.address import BucketAddress
from qo.errors import StorageError

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        RetryConfig,
        S3Config,
        S3CredentialProvider,
    )

Store = S3Store | GCSStore | AzureStore
_CONNECT = timedelta(seconds=5)
_NOBODY = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'


def open_store(address: BucketAddress, *, deletes_together: bool = False) -> Store:
    """One that deletes together does so for a single key too, which is dearer. Only S3 makes the difference."""
    if address.scheme == "s3":
        return _s3(address, deletes_together=deletes_together)
    return _gs(address) if address.scheme == "gs" else _az(address)


def _s3(address: BucketAddress, *, deletes_together: bool) -> S3Store:
    config: S3Config = {
        "region": address.region,
        "disable_bulk_delete": not deletes_together,
        "skip_signature": address.anonymous,
    }
    if address.endpoint:
        config["endpoint"] = address.endpoint
        config["aws_endpoint_url_s3"] = address.endpoint  # a variable of this name would win over the line above
    provider = None if address.anonymous else _credentials(address)
    return S3Store(
        address.bucket,
        config=config,
        client_options=_client(address),
        retry_config=_retries(),
        credential_provider=provider,
    )


def _credentials(address: BucketAddress) -> "S3CredentialProvider | None":
    """Keys in the environment are the driver's own business; profiles, logins and roles are boto3's."""
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - slow to import, and rarely needed

    try:
        return Boto3CredentialProvider()
    except ValueError as error:
        raise StorageError(
            f"there are no credentials for {address}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"
        ) from error


def _gs(address: BucketAddress) -> GCSStore:
    config: GCSConfig = {}
    if address.anonymous:  # the driver's `skip_signature` does not reach its deletions
        config["service_account_key"] = _NOBODY
    if address.endpoint:
        config["base_url"] = address.endpoint
    return GCSStore(address.bucket, config=config, client_options=_client(address), retry_config=_retries())


def _az(address: BucketAddress) -> AzureStore:
    config: AzureConfig = {"skip_signature": address.anonymous}
    if address.account:
        config["account_name"] = address.account
    if address.endpoint:
        config["endpoint"] = address.endpoint
    return AzureStore(address.bucket, config=config, client_options=_client(address), retry_config=_retries())


def _client(address: BucketAddress) -> "ClientConfig":
    return {
        "allow_http": address.endpoint.startswith("http://"),
        "connect_timeout": _CONNECT,
        "timeout": timedelta(seconds=address.timeout),
        "pool_max_idle_per_host": str(address.connections),
        "default_content_type": "application/octet-stream",
    }


def _retries() -> "RetryConfig":
    return {"max_retries": 0}
