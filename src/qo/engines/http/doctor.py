"""Examining a server for `qo doctor`: is it there, is it ours, does it take our token?"""

from qo import wire
from qo.engines.http.address import address_of
from qo.engines.http.client import HttpClient
from qo.errors import QoError
from qo.findings import Finding


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    line = HttpClient(address)
    try:
        hello = (await line.ask("hello", wire.encode(None))).data
        counted = (await line.ask("count", wire.encode(None))).data
    except QoError as error:
        return [Finding("server", False, str(error))]
    finally:
        await line.close()
    return [
        Finding("server", True, f"{address.url} answers" + (f", version {hello.version}" if hello.version else "")),
        _protocol(hello.protocol),
        _token(address.token),
        Finding("store", True, f"the server's store answers and counts {sum(counted.values()):,} tasks"),
    ]


def _protocol(spoken: int) -> Finding:
    if spoken != wire.PROTOCOL:
        return Finding(
            "protocol", False, f"the server speaks version {spoken}, this is {wire.PROTOCOL}; upgrade the older one"
        )
    return Finding("protocol", True, f"version {spoken}")


def _token(token: str) -> Finding:
    if not token:
        return Finding("token", None, "the server asks for no token; fine on one machine, not on a network")
    return Finding("token", True, "the token is accepted")
