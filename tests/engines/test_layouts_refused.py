"""A bucket that may be read but not written: every call fails at once with a clear error."""

import asyncio

import pytest

from qo.buckets import open_bucket
from qo.engines import open_engine
from qo.engines.sqlite_object import DurabilityMode, SqliteObjectEngine
from qo.errors import Refused
from qo.testing import S3Server
from qo.testing.s3_server import Request, S3Answer, S3Objects
from qo.testing.samples import claim, new
from tests.engines.layouts import LAYOUTS

TIMEOUT = 10.0  # seconds until a test gives up


class ReadOnly(S3Objects):
    is_locked = True

    def answer(self, request: Request) -> S3Answer:
        if self.is_locked and request.method in ("PUT", "POST", "DELETE"):
            return self._error(403, "AccessDenied")
        return super().answer(request)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_writer_without_permission_gets_an_error_immediately(layout: str) -> None:
    objects = ReadOnly("bucket")
    async with S3Server(objects=objects) as server:
        engine = open_engine(f"{server.url}&layout={layout}")
        await engine.open()
        before = server.requests
        with pytest.raises(Refused, match=r"may not do this .* qo bucket-setup --print-policy"):
            await engine.add([new()])
        assert server.requests - before <= 2
        objects.is_locked = False
        await engine.add([new()])
        assert len(await claim(engine)) == 1
        await engine.close()


async def test_changes_that_cannot_be_flushed_wait_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    objects = ReadOnly("bucket")
    async with S3Server(objects=objects) as server:
        bucket = open_bucket(server.url)
        engine = SqliteObjectEngine(bucket, mode=DurabilityMode.LOCAL, interval=0.0)
        await engine.open()
        tries = server.requests + 5
        await engine.add([new()])
        async with asyncio.timeout(TIMEOUT):
            while server.requests < tries:
                await asyncio.sleep(0)
        with pytest.raises(Refused):
            await engine.flush()
        objects.is_locked = False
        await engine.flush()
        await engine.close()
        assert len(await claim(SqliteObjectEngine(bucket))) == 1
    assert sum("may not do this" in record.getMessage() for record in caplog.records) == 1
