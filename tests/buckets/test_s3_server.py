"""The S3 server of the tests: fast enough for measurements, with faults on request."""

import asyncio
import time

from qo.bucket import ANY, NEW
from qo.buckets import open_bucket
from qo.buckets.own_writes import put_document
from qo.errors import Conflict, QoError, StorageError
from qo.testing import Faults, Latency, S3Server


async def ask(port: int, requests: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b"x" * 300
    head = b"PUT /bucket/a/%d HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n"
    for number in range(requests):
        writer.write(head % number + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_it_serves_thousands_of_requests_a_second() -> None:
    async with S3Server() as server:
        port = int(server.endpoint.rsplit(":", 1)[1])
        started = (
            time.process_time()
        )  # processor time of client and server, because other tests may run at the same time
        await asyncio.gather(*(ask(port, 300) for _ in range(10)))
        assert 3_000 / (time.process_time() - started) > 3_000


async def test_responses_take_the_configured_time() -> None:
    async with S3Server(latency=Latency(put=0.03, get=0.2)) as server:
        bucket = open_bucket(server.url)
        await bucket.get("warm")
        started = time.perf_counter()
        await bucket.put("a", b"", expected=NEW)
        assert time.perf_counter() - started >= 0.03
        started = time.perf_counter()
        await asyncio.gather(*(bucket.get("a") for _ in range(20)))
        assert 0.2 <= time.perf_counter() - started < 2, "they did not run at once"


async def test_every_answer_is_right_over_a_faulty_connection() -> None:
    async with S3Server() as server:
        bucket = open_bucket(server.url)
        server.faults = Faults(5, lost_request=0.1, lost_response=0.15, late=0.1, refused=0.15)

        async def create(key: str, writer: int) -> bool | None:
            data = b"%d" % writer
            try:
                await put_document(bucket, key, data, expected=NEW, is_ours=data.__eq__)
            except Conflict:
                return False
            except StorageError:
                return None
            return True

        async def race(number: int) -> list[bool | None]:
            return await asyncio.gather(*(create(f"k/{number}", writer) for writer in range(4)))

        told = await asyncio.gather(*(race(number) for number in range(15)))
        server.faults = Faults(0)
        for number, answers in enumerate(told):
            blob = await bucket.get(f"k/{number}")
            assert blob is not None
            assert answers.count(True) == 1
            assert answers[int(blob.data)] is True


async def test_a_late_write_arrives_after_its_caller_gave_up() -> None:
    async with S3Server() as server:
        bucket = open_bucket(server.url)
        server.faults = Faults(1, late=1.0)
        answers = await asyncio.gather(bucket.put("a", b"late", expected=ANY), return_exceptions=True)
        assert isinstance(answers[0], QoError)
        server.faults = Faults(1)
        seen = [await bucket.get("a") for _ in range(7)]
        assert seen[0] is None or seen[0].data == b"late"
        assert seen[-1] is not None
