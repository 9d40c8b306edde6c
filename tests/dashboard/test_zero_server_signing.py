"""Signatures made in the browser, against Amazon's published examples and against botocore's signer."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]
from playwright.async_api import Page

from qo.web.static_site.credentials import signing_key, signing_keys
from tests.dashboard.chromium import call

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "examplebucket.s3.amazonaws.com"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
AT = datetime(2013, 5, 24, tzinfo=UTC).timestamp()

# Amazon S3 API Reference, "Signature Calculations for the Authorization Header": its four examples.
EXAMPLES: list[tuple[dict[str, Any], str]] = [
    (
        {"method": "GET", "path": "/test.txt", "headers": {"Range": "bytes=0-9"}},
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    (
        {
            "method": "PUT",
            "path": "/test%24file.text",
            "headers": {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            "bodyHash": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        },
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    (
        {"method": "GET", "path": "/", "query": {"lifecycle": ""}},
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    (
        {"method": "GET", "path": "/", "query": {"max-keys": "2", "prefix": "J"}},
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
]

SIGN = """await new m.Signer(argument.signer).sign(argument.request)"""


def signer(**more: Any) -> dict[str, Any]:
    keys = {"20130524": signing_key(SECRET, "20130524", "us-east-1")}
    return {"accessKeyId": KEY, "region": "us-east-1", "keys": keys} | more


@pytest.mark.parametrize(("request_", "signature"), EXAMPLES, ids=["get", "put", "lifecycle", "list"])
async def test_amazons_examples_get_their_signatures(modules: Page, request_: dict[str, Any], signature: str) -> None:
    asked = {"signer": signer(), "request": {"host": HOST, "at": AT, "bodyHash": EMPTY, **request_}}
    headers = await call(modules, "sigv4.js", SIGN, asked)
    assert headers["authorization"].endswith(f"Signature={signature}")
    assert headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEY}/20130524/us-east-1/s3/aws4_request")


async def test_a_derived_key_is_what_both_sides_derive(modules: Page) -> None:
    ours = await call(modules, "sigv4.js", "await m.deriveKey(...argument)", [SECRET, "20130524", "us-east-1", "s3"])
    assert ours == signing_key(SECRET, "20130524", "us-east-1")
    assert list(signing_keys(SECRET, "us-east-1", start=AT, end=AT + 86_400)) == ["20130524", "20130525"]


REQUESTS: list[tuple[str, str, dict[str, str], dict[str, str], str]] = [
    ("GET", "tasks/0/plain.json", {}, {}, ""),
    ("GET", "a b/ü+&=~!'()*/x.json", {"versionId": "a/b+c=="}, {"if-none-match": '"abc"'}, ""),
    (
        "GET",
        "",
        {"list-type": "2", "prefix": "team/ready/", "start-after": "team/ready/0/~ *", "max-keys": "1000"},
        {},
        "",
    ),
    ("GET", "", {"versions": "", "prefix": "team/tasks/0/x.json", "max-keys": "9"}, {}, ""),
    ("PUT", "team/tasks/0/x.json", {}, {"content-type": "application/json", "if-match": '"0123"'}, '{"a": "ü"}'),
    ("PUT", "ready/0/1", {}, {"content-type": "application/json", "if-none-match": "*"}, "{}"),
    ("DELETE", "leases/0/000000001/abc_def", {}, {}, ""),
]


SIGN_LIKE_THEM = """await (async ({signer, request, url, body}) => {
    const {host, pathname: path} = new URL(url);
    return new m.Signer(signer).sign({...request, host, path, bodyHash: await m.sha256(body)});
})(argument)"""


@pytest.mark.parametrize("token", ["", "FQoGZXIvYXdzE/+== token"])
@pytest.mark.parametrize("style", ["https://b.s3.eu-west-3.amazonaws.com/", "http://127.0.0.1:8333/b/"])
async def test_botocore_signs_alike(modules: Page, style: str, token: str) -> None:
    for method, key, query, headers, body in REQUESTS:
        path, asked = await call(
            modules, "sigv4.js", "[m.encodePath(argument[0]), m.canonicalQuery(argument[1])]", [key, query]
        )
        url = f"{style}{path}" + (f"?{asked}" if asked else "")
        theirs = AWSRequest(method, url, headers=dict(headers), data=body.encode())
        S3SigV4Auth(Credentials(KEY, SECRET, token or None), "s3", "eu-west-3").add_auth(theirs)
        at = datetime.strptime(theirs.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        date = f"{at:%Y%m%d}"
        ours = await call(
            modules,
            "sigv4.js",
            SIGN_LIKE_THEM,
            {
                "signer": {
                    "accessKeyId": KEY,
                    "sessionToken": token,
                    "region": "eu-west-3",
                    "keys": {date: signing_key(SECRET, date, "eu-west-3")},
                },
                "request": {"method": method, "query": query, "headers": headers, "at": at.timestamp()},
                "url": url,
                "body": body,
            },
        )
        assert ours["authorization"] == theirs.headers["Authorization"], (method, url)


async def test_a_key_signs_on_its_day_only(modules: Page) -> None:
    attempt = """await new m.Signer(argument.signer).sign(argument.request).catch((error) => error.code)"""
    asked = {"signer": signer(), "request": {"method": "GET", "host": HOST, "path": "/", "at": AT + 86_400}}
    assert await call(modules, "sigv4.js", attempt, asked) == "expired"


async def test_a_signer_does_not_expose_its_keys(modules: Page) -> None:
    shown = await call(modules, "sigv4.js", "JSON.stringify(new m.Signer(argument)) ", signer())
    assert signing_key(SECRET, "20130524", "us-east-1") not in shown
    assert KEY in shown
