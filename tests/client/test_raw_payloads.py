"""Bytes in, bytes out: on every way a payload or result can be read."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.arguments import SignatureArguments
from qo.client import Client
from qo.codec import RawBytes, encode_value, plain_task, to_json
from qo.sync import connect as connect_sync

RAW = [b"raw", b"", b"\x00raw", b'{"a":1}', b"\x01qo\x01@", b"\xff" * 300_000]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:8]))
async def test_bytes_come_back_as_they_were_sent(raw: bytes, tmp_path: Path) -> None:
    async with qo.connect(f"file://{tmp_path}?layout=one") as client:
        submitted = await client.enqueue("t", raw)
        [task] = await client.dequeue()
        assert task.payload == raw and qo.decode(task.payload) == raw
        await client.ack(task, raw)
        assert await submitted.result() == raw
        read = await client.get(task.id)
        [listed] = await client.list()
        [one] = [each async for each in client.all()]
        for each in (read, listed, one, await client.ended(task.id)):
            assert each is not None and each.result is not None
            assert (each.payload, each.result) == (raw, raw)
            assert (qo.decode(each.payload), qo.decode(each.result)) == (raw, raw)
        assert await client.result(task.id, decode=bytes) == raw


@pytest.mark.parametrize("value", [None, {"a": [1, "ü"]}, "text", 3.5, [], b"raw"])
async def test_decode_gives_what_was_submitted(client: Client, value: Any) -> None:
    await client.enqueue("t", value)
    [task] = await client.dequeue()
    assert qo.decode(task.payload) == value


def test_decode_names_what_it_cannot_read() -> None:
    with pytest.raises(qo.InvalidTask, match="neither JSON nor raw"):
        qo.decode(b"hello")


async def test_consumers_and_stores_hand_out_bytes_too(tmp_path: Path) -> None:
    async with await qo.S3Store.create(f"file://{tmp_path}") as store:
        await (await store.producer("jobs")).enqueue(b"raw")
        (task,) = await (await store.consumer("jobs")).dequeue()
        assert task.payload == b"raw"


def test_code_without_an_event_loop_gets_bytes_too(tmp_path: Path) -> None:
    with connect_sync(f"sqlite:///{tmp_path}/qo.db") as client:
        client.enqueue("t", b"raw")
        [task] = client.dequeue()
        assert task.payload == b"raw"
        client.ack(task, b"done")
        assert client.result(task.id) == b"done"


def test_a_function_of_one_bytes_argument_takes_a_raw_payload() -> None:
    def resize(image: bytes) -> None: ...
    def named(image: bytes, width: int = 3) -> None: ...

    arguments = SignatureArguments(resize)
    assert arguments.decode(encode_value(b"\x89PNG")) == ((), {"image": b"\x89PNG"})
    assert arguments.decode(arguments.encode((b"\x89PNG",), {})) == ((), {"image": b"\x89PNG"})
    with pytest.raises(qo.InvalidTask, match="not raw bytes"):
        SignatureArguments(named).decode(encode_value(b"\x89PNG"))


async def test_a_raw_payload_seen_by_a_caller_is_still_known_as_raw(client: Client) -> None:
    await client.enqueue("t", b"\x00{}")
    [task] = await client.dequeue()
    assert plain_task(task) == task
    assert to_json(task.payload) == {"$base64": "AHt9"}
    assert type(pickle.loads(pickle.dumps(task.payload))) is RawBytes
