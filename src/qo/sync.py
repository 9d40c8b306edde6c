"""The same queue for code without an event loop: one loop of our own in one thread, no twin of any class."""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from qo.client import Client, Consumer, Producer, Settings, TaskHandle
from qo.client import connect as connect_client
from qo.clock import monotonic_clock
from qo.controls import ControlsClient
from qo.errors import InvalidSetting
from qo.storages import ObjectStorage

T = TypeVar("T")
_HANDLES = (Consumer, Producer, TaskHandle, ControlsClient)  # what a queue hands out
_END = object()


class LoopThread:
    """An event loop in a daemon thread, started when first needed. A forked child starts its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result; from any thread but the loop's own."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None and running is self._loop:
            coroutine.close()
            raise InvalidSetting("this would wait for itself: await the async method instead")
        return self.submit(coroutine).result()

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run there, wait here."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def stop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._pid == os.getpid():
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()
                loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # another thread may have held it when this process was forked off
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._loop.time = monotonic_clock  # type: ignore[method-assign]  # a handler may replace time.monotonic
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


class LoopWait:
    """Something whose coroutine methods wait, and so do those of the handles it hands out."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread, self._inner = thread, inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return _here(self._thread, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = attribute(*args, **kwargs)
            return _here(self._thread, self._thread.run(answer) if asyncio.iscoroutine(answer) else answer)

        return call

    def __repr__(self) -> str:
        return repr(self._inner)


def _here(thread: LoopThread, value: Any) -> Any:
    if isinstance(value, _HANDLES):
        return LoopWait(thread, value)
    if isinstance(value, list):
        return [_here(thread, item) for item in value]
    return _each(thread, value) if inspect.isasyncgen(value) else value


def _each(thread: LoopThread, items: AsyncGenerator[Any, Any]) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(items, _END)

    async def stop() -> None:
        await items.aclose()

    try:
        while (item := thread.run(following())) is not _END:
            yield item
    finally:
        thread.run(stop())


class SyncClient(LoopWait):
    """A Client whose methods wait. `with qo.sync.connect(url) as queue: queue.enqueue(...)`"""

    def __init__(self, client: Client) -> None:
        super().__init__(LoopThread("qo-sync"), client)

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._inner.open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.stop()


def connect(
    url: str | ObjectStorage, settings: Settings | None = None, *, make: Callable[..., Client] = connect_client
) -> SyncClient:
    return SyncClient(make(url, settings))
