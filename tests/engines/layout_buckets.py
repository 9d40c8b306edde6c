"""The buckets on which every layout is tested. A new bucket is one more line in BUCKETS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.buckets.folder.bucket import FolderBucket
from qo.buckets.memory import MemoryBucket
from qo.testing import Faults, FaultyBucket, ManualClock, S3Server

Opening = Callable[[ManualClock, Path], AbstractAsyncContextManager[Bucket]]


@asynccontextmanager
async def memory(clock: ManualClock, _: Path) -> AsyncIterator[Bucket]:
    yield MemoryBucket(clock)


@asynccontextmanager
async def faulty(clock: ManualClock, _: Path) -> AsyncIterator[Bucket]:
    faults = Faults(7, lost_request=0.02, lost_response=0.04, late=0.01, refused=0.02)
    yield FaultyBucket(MemoryBucket(clock), faults)


@asynccontextmanager
async def folder(clock: ManualClock, path: Path) -> AsyncIterator[Bucket]:
    yield FolderBucket(path, clock=clock)


@asynccontextmanager
async def folder_with_versions(clock: ManualClock, path: Path) -> AsyncIterator[Bucket]:
    yield FolderBucket(path, versions=True, clock=clock)


@asynccontextmanager
async def s3(clock: ManualClock, _: Path) -> AsyncIterator[Bucket]:
    async with S3Server() as server:
        yield open_bucket(server.url, clock=clock)


BUCKETS: dict[str, Opening] = {
    "memory": memory,
    "faulty": faulty,
    "folder": folder,
    "folder with versions": folder_with_versions,
    "s3": s3,
}
