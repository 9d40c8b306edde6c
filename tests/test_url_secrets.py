"""No secret in a URL is shown: not in listings, not in errors, however it is written."""

from collections.abc import Callable
from urllib.parse import quote

import pytest

from qo.engines import open_engine, with_options
from qo.engines.redis.doctor import _archive
from qo.errors import InvalidSetting
from qo.safe_text import hide_password

SECRET = "s3cr3t"
NESTED = f"postgresql://you:{SECRET}@h2/db"
URLS = [
    f"redis://:{SECRET}@h/0",
    *(f"redis://u:1{mark}{SECRET}@h/0" for mark in "/?#@&"),
    f"redis://h/0?archive={NESTED}",
    f"redis://h/0?archive={quote(NESTED, safe='')}",
    f"redis://h/0?archive={quote(quote(NESTED, safe=''), safe='')}",
    f"redis://h/0?archive={quote(f'postgresql://h/db?password={SECRET}', safe='')}",
    f"redis://h/0?archive={quote(f'postgresql://u:%zz{SECRET}@h/db', safe='')}",
    f"redis://h/0?archive=host=h%20password={SECRET}",
    f"redis://h/0?archive=postgresql://u:x&{SECRET}@h/db",
    f"redis+sentinel://u:{SECRET}@h:1,h:2/0?archive={quote(NESTED)}",
    *(f"postgresql://u:1{mark}{SECRET}@h/db" for mark in "/?#@%"),
    f"postgresql://h/db?sslpassword={SECRET}&x=1",
    f"postgresql://h/db?PASSWORD={SECRET}",
    f"http://w:{SECRET}@h/?a=b",
    f"http://{SECRET}@h/",
    *(f"https://w:{SECRET}{mark}x@h/" for mark in "/?#"),
    f"s3://key:{SECRET}@bucket/p",
    f"s3://bucket?access_key=x&secret_access_key={SECRET}",
    f"az://c?account_key={SECRET}",
    f"sqlite://u:{SECRET}@h/x",
    f"file://u:{SECRET}@h/x",
    f"elsewhere://u:{SECRET}@h",
]


@pytest.mark.parametrize("url", URLS)
def test_no_secret_is_shown(url: str) -> None:
    said = [hide_password(url)]
    calls: list[Callable[[], object]] = [lambda: open_engine(url), lambda: with_options(url, {"shards": "1"}) and ""]
    for call in calls:
        try:
            said.append(repr(call()))
        except InvalidSetting as error:
            said += [str(error), repr(error.__cause__)]
    assert not [text for text in said if SECRET in text]


@pytest.mark.parametrize("url", [quote(NESTED), f"postgresql://u:%zz{SECRET}@h/db", f"host=h password={SECRET}"])
async def test_the_doctor_does_not_quote_the_archive(url: str) -> None:
    finding = await _archive(url)
    assert not finding.ok
    assert SECRET not in finding.detail


def test_the_rest_of_a_url_stays_readable() -> None:
    shown = hide_password("redis://me:one@h/0?archive=postgresql://you:two@h2/db")
    assert shown == "redis://me:***@h/0?archive=postgresql://you:***@h2/db"
    assert hide_password(f"redis://h/0?prefix=q&archive={quote(NESTED, safe='')}") == (
        "redis://h/0?prefix=q&archive=postgresql://you:***@h2/db"
    )
    assert hide_password("postgresql://h/db?password=x&user=y") == "postgresql://h/db?password=***&user=y"
    for plain in ("sqlite:////tmp/a:b@c.db", "s3://b/p%20q?layout=one&endpoint=http%3A%2F%2Fh%3A9000", "memory://"):
        assert hide_password(plain) == plain
