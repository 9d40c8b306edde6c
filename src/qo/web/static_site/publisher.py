"""Publishes the page to the bucket, with public read access. A repeat only writes changed files.

The files are adapted to one bucket. The page contains no secrets, and a browser has no credentials before it has loaded
it.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from hashlib import md5
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.buckets.boto_client import open_client
from qo.errors import InvalidSetting, StorageError
from qo.safe_text import hide_password

FOLDER = "ui"
_TIMEOUT = 5.0  # seconds


def store_url(address: BucketAddress) -> str:
    """The URL of the bucket, with a trailing slash: a path under the endpoint, or a separate host.

    The certificate does not cover names with a dot, so such buckets use a path. `baseOf` in s3.js does the same.
    """
    if address.endpoint:
        return f"{address.endpoint}/{quote(address.bucket)}/"
    host = f"s3.{address.region}.amazonaws.com"
    return f"https://{host}/{address.bucket}/" if "." in address.bucket else f"https://{address.bucket}.{host}/"


def page_url(address: BucketAddress) -> str:
    """The URL of the page's folder in the bucket, with a trailing slash."""
    return store_url(address) + quote(f"{root(address)}{FOLDER}/")


def root(address: BucketAddress) -> str:
    return f"{address.prefix}/" if address.prefix else ""


def check_page(url: str) -> str:
    """A custom URL of the page, with a trailing slash. Raises InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or "'" in url:
        raise InvalidSetting(f"--page {hide_password(url)!r:.100} is not a URL such as https://tasks.example.com/ui/")
    return url.rstrip("/") + "/"


def content_policy(page: str, store: str) -> str:
    """Allows scripts and styles of the page's folder and requests to the store, nothing else.

    Not 'self': all buckets of an endpoint share one origin, and scripts of other buckets must not run here.
    """
    return (
        f"default-src 'none'; script-src {page}; style-src {page}; img-src {page} data:; "
        f"connect-src {page}config.json {store}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types qo-xml"
    )


SOURCE = Path(__file__).parents[1] / "dashboard"
INDEX, CONFIG = "index.html", "config.json"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_SERVER_FILES = ("api.js", "events.js")
_CHARSET = '<meta charset="utf-8">'  # must come first


class File(NamedTuple):
    name: str
    content: bytes
    content_type: str


def page_files(address: BucketAddress, layout: str, page: str) -> list[File]:
    """The files in the order of publishing: referenced files first, so that a page is never incomplete."""
    policy = content_policy(page, store_url(address))
    files = [
        File(name, _content(path, policy), _TYPES[path.suffix])
        for path in SOURCE.rglob("*")
        if path.suffix in _TYPES and (name := path.relative_to(SOURCE).as_posix()) != CONFIG
    ]
    files.sort(key=lambda file: (file.name == INDEX, file.name))
    config = {
        "source": "bucket",
        "bucket": address.bucket,
        "prefix": address.prefix,
        "region": address.region,
        "endpoint": address.endpoint,
        "layout": layout,
        "page": page,
        "files": [file.name for file in files],
    }
    return [File(CONFIG, json.dumps(config, indent=2).encode(), _TYPES[".json"]), *files]


def _content(path: Path, policy: str) -> bytes:
    content = path.read_bytes()
    if path.name != INDEX:
        return content
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    before, found, after = content.decode().partition(_CHARSET)
    if not found:
        raise ValueError(f"{path} does not begin with {_CHARSET}")
    return f"{before}{found}\n{meta}{_with_preloads(after)}".encode()


def _with_preloads(page: str) -> str:
    """Preloads the modules for buckets instead of those for servers."""
    ours = [path.name for path in sorted((SOURCE / "sources").glob("*.js")) if path.name not in _SERVER_FILES]
    for name in _SERVER_FILES:
        page = page.replace(f"{_preload(name)}\n", "")
    return page.replace("<script ", "".join(f"{_preload(name)}\n" for name in ours) + "<script ", 1)


def _preload(name: str) -> str:
    return f'<link rel="modulepreload" href="sources/{name}">'


def public_statement(address: BucketAddress) -> dict[str, Any]:
    """Allows everyone to read the files of the page, and nothing else."""
    return {
        "Sid": "QoDashboardPage",
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{address.bucket}/{root(address)}{FOLDER}/*"],
    }


def allow_public_read(client: Any, address: BucketAddress) -> None:
    """Add the statement to the policy of the bucket. Other statements, and those of other queues, are kept."""
    ours = public_statement(address)
    policy = _policy(client, address)
    statements = list(policy.get("Statement", []))
    mine = next((each for each in statements if each.get("Sid") == ours["Sid"]), None)
    resources = [] if mine is None else _listed(mine.get("Resource", []))
    if ours["Resource"][0] in resources:
        return
    others = [each for each in statements if each.get("Sid") != ours["Sid"]]
    wider = {**ours, "Resource": [*resources, *ours["Resource"]]}
    policy = {"Version": "2012-10-17", **policy, "Statement": [*others, wider]}
    client.put_bucket_policy(Bucket=address.bucket, Policy=json.dumps(policy))


def _policy(client: Any, address: BucketAddress) -> dict[str, Any]:
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, rarely needed

    try:
        policy: dict[str, Any] = json.loads(client.get_bucket_policy(Bucket=address.bucket)["Policy"])
    except ClientError as error:
        if error.response["Error"].get("Code") == "NoSuchBucketPolicy":
            return {}
        raise
    return policy


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def is_readable(page: str) -> bool | None:
    """Whether the page can be read without credentials; None if there was no response."""
    request = urllib.request.Request(f"{page}{INDEX}", method="HEAD")  # noqa: S310 - http(s), checked before
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):  # noqa: S310 - as above
            return True
    except urllib.error.HTTPError as refusal:
        with refusal:
            return False
    except (OSError, ValueError, http.client.HTTPException):
        return None


_CACHE_CONTROL = "no-cache"  # browsers revalidate every file, so that files of two versions are never mixed

Outcome = Literal["written", "same", "removed"]


class Put(Struct, frozen=True):
    key: str
    outcome: Outcome
    size: int


class Published(Struct, frozen=True):
    files: list[Put]
    is_public: bool | None  # whether the page is publicly readable; None if unknown


def publish(address: BucketAddress, files: Sequence[File], *, public: bool, page: str, dry_run: bool) -> Published:
    """Write the files and return what was, or would be, written and removed. `public` makes the page readable."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - slow to import, rarely needed

    client = open_client(address)
    try:
        before = _former(client, address)
        there = _there(client, address)
        puts = [_put(client, address, file, there, dry_run=dry_run) for file in files]
        puts += _remove(client, address, before - {file.name for file in files}, dry_run=dry_run)
        if public and not dry_run:
            allow_public_read(client, address)
    except ClientError as error:
        raise StorageError(_advice(address, error.response["Error"].get("Code", ""), str(error))) from error
    except BotoCoreError as error:
        raise StorageError(f"cannot publish to {address}: {error}") from error
    return Published(puts, is_readable(page) if not dry_run else None)


def read_config(address: BucketAddress) -> dict[str, Any] | None:
    """The configuration of the published page; None if there is none."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

    try:
        answer = open_client(address).get_object(Bucket=address.bucket, Key=_key(address, CONFIG))
        config = json.loads(answer["Body"].read())
    except ClientError as error:
        code = error.response["Error"].get("Code", "")
        if code in ("NoSuchKey", "404"):
            return None
        raise StorageError(_advice(address, code, str(error))) from error
    except BotoCoreError as error:
        raise StorageError(f"cannot read {address}: {error}") from error
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def _former(client: Any, address: BucketAddress) -> set[str]:
    """The names of files that were published before."""
    try:
        answer = client.get_object(Bucket=address.bucket, Key=_key(address, CONFIG))
        names = json.loads(answer["Body"].read()).get("files", [])
    except (client.exceptions.NoSuchKey, ValueError, AttributeError):
        return set()
    return {name for name in names if isinstance(name, str) and ".." not in name}


def _put(client: Any, address: BucketAddress, file: File, there: Mapping[str, str], *, dry_run: bool) -> Put:
    key = _key(address, file.name)
    if there.get(key) == md5(file.content, usedforsecurity=False).hexdigest():
        return Put(key, "same", len(file.content))
    if not dry_run:
        client.put_object(
            Bucket=address.bucket,
            Key=key,
            Body=file.content,
            ContentType=file.content_type,
            CacheControl=_CACHE_CONTROL,
        )
    return Put(key, "written", len(file.content))


def _there(client: Any, address: BucketAddress) -> dict[str, str]:
    """The ETags of the files in the bucket. With stores whose ETags are not MD5 hashes, all files are written again."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=_key(address, ""))
    return {entry["Key"]: entry["ETag"].strip('"') for page in pages for entry in page.get("Contents", ())}


def _remove(client: Any, address: BucketAddress, names: set[str], *, dry_run: bool) -> list[Put]:
    for name in sorted(names):
        if not dry_run:
            client.delete_object(Bucket=address.bucket, Key=_key(address, name))
    return [Put(_key(address, name), "removed", 0) for name in sorted(names)]


def _key(address: BucketAddress, name: str) -> str:
    return f"{root(address)}{FOLDER}/{name}"


def _advice(address: BucketAddress, code: str, text: str) -> str:
    if code in ("NoSuchBucket", "404"):
        return f"there is no bucket {address.bucket!r}; create it first"
    if code in ("AccessDenied", "403"):
        return f"the credentials do not allow publishing to {address}/{FOLDER}/: {text}"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return f"{address} does not accept the credentials ({code}); check AWS_ACCESS_KEY_ID and its secret"
    return f"{address} rejected the page: {text}"
