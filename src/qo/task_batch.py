"""`qo.batch`: groups the tasks that a program submits together.

with qo.batch("thumbnails", app) as batch:
    for name in names:
        resize.enqueue(name=name)
print(batch.wait().completed)
"""

from contextvars import Token
from types import TracebackType
from typing import Self

from qo.app import App, background_of
from qo.client.batches import BatchProgress, new_batch_id, read_progress, wait_for_batch
from qo.client.describe import current_batch
from qo.errors import InvalidSetting
from qo.model import check_batch_id


class Batch:
    """A group of tasks. Inside `with`, or `async with`, tasks that this code submits belong to it.

    Other threads and processes submit with `using(batch=batch.id)`. A nested batch replaces the outer one until its
    block ends.
    """

    def __init__(self, name: str, app: App | None = None, *, id: str | None = None) -> None:
        """`app` selects the store that `progress` and `wait` read. `id` is the id of an existing batch."""
        self.id = new_batch_id(name) if id is None else check_batch_id("batch", id)
        self.name, self._app = name, app
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(current_batch.set(self.id))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_batch.reset(self._tokens.pop())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @property
    def app(self) -> App:
        if self._app is None:
            raise InvalidSetting(f"pass the app to read the progress of a batch: qo.batch({self.name!r}, app)")
        return self._app

    def progress(self) -> BatchProgress:
        """How many tasks have finished, and how long the others may take."""
        return background_of(self.app).call_client(lambda client: read_progress(client.engine, self.id))

    async def aprogress(self) -> BatchProgress:
        return await background_of(self.app).acall_client(lambda client: read_progress(client.engine, self.id))

    def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until all tasks have finished. Raises ResultTimeout after `timeout` seconds."""
        return background_of(self.app).call_client(lambda client: wait_for_batch(client.engine, self.id, timeout))

    async def wait_async(self, timeout: float | None = None) -> BatchProgress:
        """As `wait`. It cannot be named like the other async methods, because `await` is a keyword."""
        engine_call = background_of(self.app).acall_client
        return await engine_call(lambda client: wait_for_batch(client.engine, self.id, timeout))

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


batch = Batch
