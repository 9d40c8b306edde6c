"""Google's XML API with its generation matches, as far as we use it: no usable emulator exists."""

from collections.abc import AsyncIterator

import pytest

from qo.testing import S3Server
from qo.testing.s3_server import Request, S3Answer, S3Objects


class GoogleObjects(S3Objects):
    """As S3, but every write has a generation, and conditions name it; 0 means that there is none."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self._generations: dict[str, int] = {}
        self._last = 1_000

    def answer(self, request: Request) -> S3Answer:
        place = request.target.partition("?")[0]
        generation = self._generations.get(place, 0)
        wanted = request.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != generation:
            return self._error(412, "PreconditionFailed")
        if request.method == "DELETE" and not generation:
            return self._error(404, "NoSuchKey")
        answer = super().answer(request)
        if answer.status >= 300:
            return answer
        if request.method == "PUT":
            self._last += 1
            generation = self._generations[place] = self._last
        elif request.method == "DELETE":
            del self._generations[place]
        return answer._replace(headers=answer.headers | {"x-goog-generation": str(generation)})


@pytest.fixture
async def google() -> AsyncIterator[str]:
    """The URL of an empty bucket."""
    async with S3Server(objects=GoogleObjects("bucket")) as server:
        yield f"gs://bucket/?endpoint={server.endpoint}&anonymous=true"
