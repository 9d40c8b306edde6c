"""The address of a cloud bucket, from a URL and the environment."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from qo.errors import InvalidSetting
from qo.safe_text import hide_password

_BUCKET_VARIABLES = {"s3": "S3_BUCKET", "gs": "GOOGLE_BUCKET", "az": "AZURE_CONTAINER_NAME"}
_MAX_CONNECTIONS = 64  # at 25 ms per request, about 2,500 requests a second
_REQUEST_TIMEOUT = 30.0


class BucketAddress(NamedTuple):
    scheme: str  # s3, gs or az
    bucket: str
    prefix: str = ""  # without leading and trailing slashes
    endpoint: str = ""  # empty: the provider's default
    region: str = "us-east-1"
    account: str = ""  # the Azure storage account
    anonymous: bool = False  # do not sign requests
    connections: int = _MAX_CONNECTIONS
    timeout: float = _REQUEST_TIMEOUT

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def parse_address(url: str, environ: Mapping[str, str] = os.environ) -> BucketAddress:
    """Parse `s3://bucket/prefix?endpoint=…&region=…`. Options of other layers, such as `layout=`, are ignored."""
    parts = urlsplit(url)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    bucket = parts.netloc or environ.get(_BUCKET_VARIABLES[parts.scheme], "")
    if not bucket:
        variable = _BUCKET_VARIABLES[parts.scheme]
        raise InvalidSetting(
            f"{hide_password(url)!r} names no bucket; write {parts.scheme}://bucket/prefix or set {variable}"
        )
    if "@" in bucket:
        raise InvalidSetting("a bucket URL must not contain credentials; put them into the environment")
    return BucketAddress(
        scheme=parts.scheme,
        bucket=bucket,
        prefix=unquote(parts.path).strip("/"),
        endpoint=_endpoint(parts.scheme, given, environ),
        region=_region(given, environ),
        account=_first(given.get("account"), environ.get("AZURE_STORAGE_ACCOUNT_NAME")),
        anonymous=given.get("anonymous", "").lower() in ("1", "true", "yes"),
        connections=int(_number(given, "connections", _MAX_CONNECTIONS, 1, 1024)),
        timeout=_number(given, "timeout", _REQUEST_TIMEOUT, 0.1, 3600),
    )


_REGIONS = ("S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)  # part of a host name
_ENDPOINTS = {"s3": ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("GOOGLE_BASE_URL",), "az": ()}


def _region(given: Mapping[str, str], environ: Mapping[str, str]) -> str:
    region = _first(given.get("region"), *(environ.get(name) for name in _REGIONS)) or "us-east-1"
    if not _REGION.fullmatch(region):
        raise InvalidSetting(f"region {region!r:.40} is not the name of a region, such as us-east-1")
    return region


def _endpoint(scheme: str, given: Mapping[str, str], environ: Mapping[str, str]) -> str:
    endpoint = _first(given.get("endpoint"), *(environ.get(name) for name in _ENDPOINTS[scheme])).rstrip("/")
    if endpoint and not _is_web_address(endpoint):
        raise InvalidSetting(f"endpoint {hide_password(endpoint)!r:.100} is not an http:// or https:// address")
    return endpoint


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _first(*values: str | None) -> str:
    return next((value for value in values if value), "")


def _number(given: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    text = given.get(name, str(default))
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not minimum <= number <= maximum:
        raise InvalidSetting(f"{name}={text!r:.40} is not a number from {minimum:g} to {maximum:g}")
    return number
