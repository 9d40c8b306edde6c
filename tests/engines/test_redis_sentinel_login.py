"""Sentinels and servers that ask for passwords and TLS: a real sentinel and a real server, TLS ended before them.

The server's wheel is built without TLS, so a proxy in this process ends it. A sentinel of such a fleet names ports that
speak TLS: the proxy before it writes its own port for the server's into the answers.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from redis import Redis
from redis.connection import SSLConnection

import qo
from qo.engines.redis import RedisEngine
from qo.engines.redis.address import address_of
from qo.errors import StorageError
from qo.testing.samples import new, task_id
from tests.servers.redis import Server, program

LOGIN = "sentinel_username=watcher&sentinel_password=watched&service=mymaster"


class Fleet:
    """One server and one sentinel, each with its own password."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(program(), folder / "a")
        self.sentinel = Server(program(), folder / "s")
        users = folder / "a" / "users.acl"
        users.write_text("user default on nopass ~nothing +ping\nuser tasks on >opened ~* &* +@all\n")
        self.server.command_line += ["--aclfile", str(users)]
        settings = folder / "s" / "sentinel.conf"
        settings.write_text(
            f"port {self.sentinel.port}\nbind 127.0.0.1\ndir {folder}/s\nlogfile {folder}/s/log\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.server.port} 1\n"
            "sentinel auth-user mymaster tasks\nsentinel auth-pass mymaster opened\n"
            "user default on nopass +ping\nuser watcher on >watched +@all\n"
        )
        self.sentinel.command_line = [program(), str(settings), "--sentinel"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    fleet.server.start()
    fleet.sentinel.start()
    yield fleet
    fleet.sentinel.stop()
    fleet.server.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    until, number = now + timedelta(1), x509.random_serial_number()
    builder = x509.CertificateBuilder(name, name, key.public_key(), number, now, until)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(signed.public_bytes(Encoding.PEM) + private)
    return path


@contextlib.asynccontextmanager
async def ending_tls(port: int, certificate: Path, *, named: dict[int, int] | None = None) -> AsyncIterator[int]:
    """A TLS port that forwards to `port`. In responses, ports are replaced according to `named`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    replaced = [(_bulk(old), _bulk(new)) for old, new in (named or {}).items()]

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                for old, new in replaced if answers else ():
                    data = data.replace(old, new)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pump(reader, forth, answers=False), pump(back, writer, answers=True))
        finally:
            for side in (forth, writer):
                side.close()
                with contextlib.suppress(OSError):
                    await side.wait_closed()

    serving: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None), return_exceptions=True)


def _bulk(port: int) -> bytes:
    return b"$%d\r\n%d\r\n" % (len(str(port)), port)


async def test_sentinels_have_their_own_login(fleet: Fleet) -> None:
    url = f"redis+sentinel://tasks:opened@127.0.0.1:{fleet.sentinel.port}/0?replicas=0&"
    async with qo.connect(url + LOGIN) as client:
        submitted = await client.enqueue("t")
        assert [task.id for task in await client.dequeue("t")] == [submitted.id]
    wrong = RedisEngine(address_of(url + LOGIN.replace("watched", "guessed")))
    with pytest.raises(StorageError) as caught:
        await wrong.count()
    await wrong.close()
    assert "guessed" not in str(caught.value) and "opened" not in str(caught.value)


async def test_sentinels_and_servers_use_tls_and_their_certificates_are_checked(
    fleet: Fleet, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ending_tls(fleet.server.port, certificate) as port,
        ending_tls(fleet.sentinel.port, certificate, named={fleet.server.port: port}) as asked,
    ):
        url = f"rediss+sentinel://tasks:opened@127.0.0.1:{asked}/0?replicas=0&prefix=tls&{LOGIN}"
        untrusted = RedisEngine(address_of(url))
        with pytest.raises(StorageError, match="certificate"):
            await untrusted.count()
        await untrusted.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with qo.connect(url) as client:
            submitted = await client.enqueue("t")
            assert [task.id for task in await client.dequeue("t")] == [submitted.id]


async def test_plain_code_submits_over_one_connection_with_tls(
    fleet: Fleet, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    connections = list[SSLConnection]()
    connect: Any = SSLConnection.connect  # the driver is only partly typed

    def count(connection: SSLConnection) -> None:
        connections.append(connection)
        connect(connection)

    monkeypatch.setattr(SSLConnection, "connect", count)
    async with ending_tls(fleet.server.port, certificate) as port:
        engine = RedisEngine(address_of(f"rediss://tasks:opened@127.0.0.1:{port}/0?prefix=direct"))
        await engine.open()
        large = b'"' + b"x" * 200_000 + b'"'
        for n, payload in enumerate([b"1", b"2", large, b"4"]):
            added = await asyncio.to_thread(engine.add_directly, [new(n, payload=payload)])
            assert added == [(task_id(n), True)]
        assert len(connections) == 1
        with Redis(port=fleet.server.port, username="tasks", password="opened") as server:
            server.client_kill_filter(_type="normal", skipme=True)
        assert await asyncio.to_thread(engine.add_directly, [new(4)]) == [(task_id(4), True)]
        assert len(connections) == 2
        (stored,) = await engine.get([task_id(2)])
        assert stored is not None and stored.payload == large
        await engine.close()


def test_the_login_of_sentinels_is_never_shown() -> None:
    address = address_of(f"rediss+sentinel://tasks:opened@a,b:1/0?{LOGIN}")
    assert (address.tls, address.sentinel_login.tls) == (True, True)
    assert address.sentinel_login[:2] == ("watcher", "watched")
    assert address.shown_url == "rediss+sentinel://a:26379,b:1/0"
    assert "watched" not in repr(address) + repr(address.sentinel_login)
