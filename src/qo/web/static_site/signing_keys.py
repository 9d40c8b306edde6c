"""Keys derived from a secret: each signs requests to one service in one region on one day (UTC), and nothing else."""

import hmac
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

SERVICE = "s3"


def signing_key(secret: str, date: str, region: str, service: str = SERVICE) -> str:
    """Signature Version 4's chain of HMACs, as hex. The secret cannot be found from it."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def signing_keys(secret: str, region: str, *, start: float, end: float) -> dict[str, str]:
    """The keys of every day from `start` to `end`."""
    return {date: signing_key(secret, date, region) for date in _dates(start, end)}


def _dates(start: float, end: float) -> Iterator[str]:
    day, last = (datetime.fromtimestamp(instant, UTC).date() for instant in (start, end))
    while day <= last:
        yield f"{day:%Y%m%d}"
        day += timedelta(days=1)
