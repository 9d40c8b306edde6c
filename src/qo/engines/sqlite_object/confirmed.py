"""What the bucket is known to hold: the only thing that reads in `durable` mode ever see."""

import asyncio

from qo.bucket import NEW, Blob, Bucket
from qo.clock import Clock
from qo.engines.retry import retry, retry_opening
from qo.engines.sqlite_object.image import Image
from qo.errors import StorageError


class Confirmed:
    def __init__(self, bucket: Bucket, key: str, clock: Clock) -> None:
        self._bucket, self._key, self._clock = bucket, key, clock
        self.version = ""  # of the object; empty: not known
        self.data = b""
        self._number = 0
        self._image: Image | None = None  # made when someone reads: a program that only submits never needs it
        self._adoptions = 0
        self._look_under_way: asyncio.Task[None] | None = None
        self._next_look: asyncio.Task[None] | None = None

    @property
    def image(self) -> Image:
        if self._image is None:
            self._image = Image(self._key, self.data, self._clock, is_ours=bool(self.data))
        return self._image

    def adopt(self, data: bytes, version: str, number: int) -> None:
        self._forget_image()
        self.data, self.version, self._number = data, version, number
        self._adoptions += 1

    def suspect(self) -> None:
        """Look again before the next use."""
        self.version = ""

    async def settle(self) -> None:
        """Wait for looks whose callers have left."""
        while looks := [look for look in (self._look_under_way, self._next_look) if look is not None]:
            await asyncio.wait(looks)

    def close(self) -> None:
        self.suspect()
        self._forget_image()
        self.data = b""

    def _forget_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None

    async def refresh(self) -> None:
        """Look at the bucket. All who ask while one look is under way share the next: that one may be too old."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_after(self._look_under_way))
            self._next_look.add_done_callback(_heard)
        await asyncio.shield(self._next_look)

    async def _look_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._look_under_way, self._next_look = self._next_look, None
        try:
            await self.look()
        finally:
            self._look_under_way = None

    async def look(self, *, is_opening: bool = False) -> None:
        adoptions = self._adoptions
        blob = await (retry_opening if is_opening else retry)(self._get)
        data, version = (b"", NEW) if blob is None else (blob.data, blob.version)
        if version == self.version:
            return
        if blob is not None and not data:
            raise StorageError(f"{self._key} is empty; put an older version in its place, or remove it to start over")
        image = Image(self._key, data, self._clock)
        number = image.number()
        if self._adoptions != adoptions and number <= self._number:
            image.close()  # a write of ours was confirmed while we looked, and this is from before it
            return
        self.adopt(data, version, number)
        self._image = image

    async def _get(self) -> Blob | None:
        return await self._bucket.get(self._key)


def _heard(look: asyncio.Task[None]) -> None:
    """Everyone who waited for it may have left."""
    if not look.cancelled():
        look.exception()
