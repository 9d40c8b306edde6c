"""obstore clients for S3 and compatible stores, Google and Azure.

The driver's retries are off: a retry of a conditional write whose first response was lost would look like a conflict.
"""

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
_CONNECT_TIMEOUT = timedelta(seconds=5)
_ANONYMOUS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'


def open_store(address: BucketAddress, *, bulk_delete: bool = False) -> Store:
    """Open a store. With `bulk_delete` S3 uses bulk requests for single keys too, which are slower."""
    if address.scheme == "s3":
        return _s3(address, bulk_delete=bulk_delete)
    return _gs(address) if address.scheme == "gs" else _az(address)


def _s3(address: BucketAddress, *, bulk_delete: bool) -> S3Store:
    config: S3Config = {
        "region": address.region,
        "disable_bulk_delete": not bulk_delete,
        "skip_signature": address.anonymous,
    }
    if address.endpoint:
        config["endpoint"] = address.endpoint
        # an environment variable of this name would override `endpoint`
        config["aws_endpoint_url_s3"] = address.endpoint
    provider = None if address.anonymous else _credentials(address)
    return S3Store(
        address.bucket,
        config=config,
        client_options=_client(address),
        retry_config=_retries(),
        credential_provider=provider,
    )


def _credentials(address: BucketAddress) -> "S3CredentialProvider | None":
    """None if the environment holds keys, which the driver reads; otherwise boto3's profiles, logins and roles."""
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - slow to import, rarely needed

    try:
        return Boto3CredentialProvider()
    except ValueError as error:
        raise StorageError(
            f"there are no credentials for {address}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"
        ) from error


def _gs(address: BucketAddress) -> GCSStore:
    config: GCSConfig = {}
    if address.anonymous:  # the driver ignores `skip_signature` for deletions
        config["service_account_key"] = _ANONYMOUS
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
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timedelta(seconds=address.timeout),
        "pool_max_idle_per_host": str(address.connections),
        "default_content_type": "application/octet-stream",
    }


def _retries() -> "RetryConfig":
    return {"max_retries": 0}
