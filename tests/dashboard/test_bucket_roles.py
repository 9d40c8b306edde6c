"""What each role can do in a bucket whose store enforces the printed policies: its own work, and no more."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import boto3  # type: ignore[import-untyped]
import msgspec
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

import qo
from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.buckets.address import parse_address
from qo.buckets.setup import ROLES, Role, policy
from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, Refused, StorageError
from qo.model import ANY, PAYLOAD_LIMIT, Status
from qo.monitor import Monitor
from qo.notes import TOKENS
from qo.stats import add_up, read_stats
from qo.web.callers import Scope
from qo.web.http.tokens import OLD_TOKENS, Tokens, create_token, discard_old_tokens, read_tokens
from qo.worker.registration import Registration, WorkerStatus
from qo.worker.settings import WorkerSettings
from tests.dashboard.zero_store import Place, Store
from tests.engines.below import below
from tests.servers.process import KEYS

LAYOUTS = ["tasks", "one", "sqlite"]  # in which a producer reads what it submits
LESSER: list[Role] = [role for role in ROLES if role != "admin"]
LARGE = "x" * (PAYLOAD_LIMIT + 1)
IDLE = WorkerStatus(running=(), waiting=0, held=0, leases=0, free_slots=1, is_stopping=False)
pytestmark = pytest.mark.usefixtures("_keys")


@pytest.fixture(params=LAYOUTS)
def place(store: Store, request: pytest.FixtureRequest) -> Place:
    return store.empty_place(layout=request.param)


@pytest.fixture(params=[*LAYOUTS, "log"])
def any_place(store: Store, request: pytest.FixtureRequest) -> Place:
    return store.empty_place(layout=request.param)


@contextmanager
def acting_as(place: Place, role: Role) -> Iterator[Callable[[], Any]]:
    """Short-lived credentials under the role's policy, in the environment; and what makes a client with them."""
    text = json.dumps(policy(parse_address(place.url.partition("&layout")[0], {}), role, layout=place.layout))
    given = token_service(place.endpoint).get_federation_token(Name="role", Policy=text, DurationSeconds=900)
    names = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY"}
    names["SessionToken"] = "AWS_SESSION_TOKEN"
    with pytest.MonkeyPatch.context() as patch:
        for name, variable in names.items():
            patch.setenv(variable, given["Credentials"][name])
        yield partial(client, place.endpoint, *(given["Credentials"][name] for name in names))


@cache
def session() -> Any:
    return boto3.Session()  # it reads its descriptions of services once


@cache
def token_service(endpoint: str) -> Any:
    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    return session().client("sts", region_name="us-east-1", endpoint_url=endpoint, **keys)


def client(endpoint: str, key: str, secret: str, token: str) -> Any:
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_session_token": token}
    return session().client("s3", region_name="us-east-1", endpoint_url=endpoint, **keys)


def is_refused(request: Any) -> bool:
    try:
        request()
    except ClientError as error:
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403)
    return False


async def test_each_role_can_do_its_work(place: Place) -> None:
    with acting_as(place, "producer"):
        async with qo.connect(place.url) as client:
            first = await client.enqueue("work", LARGE)
            second = await client.enqueue("work", 2, idempotency_key="once")
            assert not (await client.enqueue("work", 2, idempotency_key="once")).new
            task = await client.get(first.id)
            assert task is not None and len(task.payload) > PAYLOAD_LIMIT
    with acting_as(place, "worker"):
        async with qo.connect(place.url) as client:
            registration = Registration(client.engine, WorkerSettings(id="w"), ("work",), system_clock)
            await registration.make_types_known()
            await registration.announce(IDLE)
            await client.controls.in_force()
            tasks = await client.dequeue("work", batch_size=2)
            assert {task.id for task in tasks} == {first.id, second.id}
            for task in tasks:
                await client.ack(task, LARGE)
    with acting_as(place, "monitor"):
        async with qo.connect(place.url) as client:
            assert (await Monitor(client, id="m").check()).led
            await client.engine.repair()
    with acting_as(place, "dashboard"):
        async with qo.connect(place.url) as client:
            assert {task.status for task in await client.list()} == {Status.COMPLETED}
            assert len(await client.history(first.id)) == 3
            counted = await read_stats(client.engine, system_clock() - 600, system_clock())
            assert sum(row.completed for row in add_up(counted).values()) == 2
            with pytest.raises(StorageError):
                await client.enqueue("work")
    with acting_as(place, "operator"):
        async with qo.connect(place.url) as client:
            await client.archive(first.id)
            await client.controls.pause()
            await client.delete(second.id)
            now = system_clock()
            await AuditTrail(client.engine, clock=system_clock).record(
                new_record(at=now, actor="cli", who="ops", action="pause")
            )
            with pytest.raises(Refused):
                await compact_audit(client.engine, now)
    with acting_as(place, "admin"):
        async with qo.connect(place.url) as client:
            await create_token(client.engine, "ci", [Scope.READ], now=0.0)
            assert [token.name for token in (await read_tokens(client.engine)).tokens] == ["ci"]
            await compact_audit(client.engine, now)
            page = await read_audit(client.engine, now=now, limit=10)
            assert ("pause", False) in [(record.action, record.verified) for record in page.records]
    assert "admin/tokens.json" in place.objects()


async def test_in_a_log_a_producer_submits_and_can_do_nothing_else(store: Store) -> None:
    place = store.empty_place(layout="log")
    with acting_as(place, "worker"):
        async with qo.connect(place.url) as client:
            await client.enqueue("work", LARGE)  # creates the log
    before = place.objects()
    assert any(key.startswith("data/") for key in before)
    with acting_as(place, "producer") as connect:
        s3 = connect()
        async with qo.connect(place.url) as client:
            first, second = await client.enqueue("work", LARGE), await client.enqueue("work", 2)
            with pytest.raises(Refused):
                await client.enqueue("work", 2, idempotency_key="once")  # only the log knows whether it exists
            with pytest.raises(Refused):
                await client.get(first.id)
        for key in before:
            ask = {"Bucket": place.bucket, "Key": f"{place.prefix}/{key}"}
            assert key == "log/meta.json" or is_refused(partial(s3.get_object, **ask)), key
            # It creates large values under names that nobody can guess.
            assert key.startswith("data/") or is_refused(partial(s3.put_object, Body=b"mine", **ask)), key
            assert is_refused(partial(s3.delete_object, **ask)), key
        for prefix in ("log/", "data/", "data/0"):
            assert is_refused(partial(s3.list_objects_v2, Bucket=place.bucket, Prefix=f"{place.prefix}/{prefix}"))
    with acting_as(place, "worker"):
        async with qo.connect(place.url) as client:
            await client.engine.repair()
            tasks = await client.dequeue("work", batch_size=9)
            assert {first.id, second.id} < {task.id for task in tasks}
            for task in tasks:
                await client.ack(task, LARGE)
    with acting_as(place, "monitor"):
        async with qo.connect(place.url) as client:
            assert (await Monitor(client, id="m").check()).led
            await client.engine.repair()
    with acting_as(place, "dashboard"):
        async with qo.connect(place.url) as client:
            assert {task.status for task in await client.list()} == {Status.COMPLETED}
            with pytest.raises(StorageError):
                await client.enqueue("work")


@pytest.mark.parametrize("role", LESSER)
def test_only_an_admin_reaches_tokens_and_writes_the_page(any_place: Place, role: Role) -> None:
    place = any_place
    for key in ("admin/tokens.json", "admin/audit/1.json", "audit/new/1.json", "ui/index.html"):
        place.put(key, b"as it was")
    with acting_as(place, role) as connect:
        s3 = connect()
        ask = {name: partial(getattr(s3, name), Bucket=place.bucket) for name in ("get_object", "delete_object")}
        for key in ("admin/tokens.json", "admin/audit/1.json", "admin/new.json", "audit/new/1.json"):
            assert is_refused(partial(ask["get_object"], Key=f"{place.prefix}/{key}")), key
        for key in ("admin/tokens.json", "admin/audit/1.json", "admin/new.json", "ui/index.html", "ui/new.js"):
            put = partial(s3.put_object, Bucket=place.bucket, Key=f"{place.prefix}/{key}", Body=b"mine")
            assert is_refused(put), key
            assert is_refused(partial(ask["delete_object"], Key=f"{place.prefix}/{key}")), key
        assert is_refused(partial(ask["delete_object"], Key=f"{place.prefix}/audit/new/1.json"))
        for prefix in ("", f"{place.prefix}/", f"{place.prefix}/admin/", f"{place.prefix}/audit/", "another/"):
            assert is_refused(partial(s3.list_objects_v2, Bucket=place.bucket, Prefix=prefix)), prefix
        assert is_refused(partial(s3.list_objects_v2, Bucket=place.bucket))
    assert place.read("admin/tokens.json") == place.read("ui/index.html") == b"as it was"


def test_a_producer_writes_what_it_submits_and_nothing_that_workers_keep(store: Store) -> None:
    place = store.empty_place()
    with acting_as(place, "producer") as connect:
        s3 = connect()
        for key in ("notes/control.json", "notes/tokens.json", "workers/w.json", "leases/0/x", "stats/finished.json"):
            assert is_refused(partial(s3.put_object, Bucket=place.bucket, Key=f"{place.prefix}/{key}", Body=b"")), key


async def test_a_token_that_a_lesser_role_writes_is_worth_nothing(place: Place) -> None:
    """Neither in the place of earlier versions, nor inside the one object of a layout."""
    with acting_as(place, "worker"):
        async with qo.connect(place.url) as client:
            forged = await create_token(MemoryEngine(), "forged", [Scope.ADMIN], now=0.0)
            data = msgspec.json.encode(Tokens(tokens=(forged.token,)))
            with pytest.raises(StorageError):
                await client.engine.write_note(TOKENS, data, expected=ANY)
            await client.engine.write_note(OLD_TOKENS, data, expected=ANY)
            store = below(client.store)
            if place.layout != "tasks":
                await store.write_note(TOKENS, data, expected=ANY)
    with acting_as(place, "admin"):
        async with qo.connect(place.url) as client:
            with pytest.raises(InvalidSetting, match="qo migrate --tokens"):
                await read_tokens(client.engine)
            with pytest.raises(InvalidSetting, match="qo migrate --tokens"):
                await create_token(client.engine, "mine", [Scope.READ], now=0.0)
            assert [token.name for token in await discard_old_tokens(client.engine)] == ["forged"]
            assert (await read_tokens(client.engine)).tokens == ()
            await create_token(client.engine, "mine", [Scope.READ], now=0.0)
            await client.engine.write_note(OLD_TOKENS, data, expected=ANY)
            assert [token.name for token in (await read_tokens(client.engine)).tokens] == ["mine"]
            assert [note.name for note in await client.engine.notes("a")] == [TOKENS]
