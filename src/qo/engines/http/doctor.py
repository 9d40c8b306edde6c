"""Examines a server for `qo doctor`: whether it responds, speaks the protocol and accepts the token."""

from qo import wire
from qo.engines.http.client import HttpClient, address_of
from qo.errors import QoError
from qo.model import plural
from qo.reports import Finding


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    client = HttpClient(address)
    try:
        hello = (await client.request("hello", wire.encode(None))).data
        counted = (await client.request("count", wire.encode(None))).data
    except QoError as error:
        return [Finding("server", False, str(error))]
    finally:
        await client.close()
    return [
        Finding("server", True, f"{address.url} responds" + (f", version {hello.version}" if hello.version else "")),
        _protocol(hello.protocol),
        _token(address.token),
        Finding("store", True, f"the server's store responds and holds {plural(sum(counted.values()))}"),
    ]


def _protocol(spoken: int) -> Finding:
    if spoken != wire.PROTOCOL:
        return Finding(
            "protocol", False, f"the server uses version {spoken}, this qo {wire.PROTOCOL}; upgrade the older one"
        )
    return Finding("protocol", True, f"version {spoken}")


def _token(token: str) -> Finding:
    if not token:
        return Finding("token", None, "the server requires no token; safe on one machine, unsafe on a network")
    return Finding("token", True, "the token is accepted")
