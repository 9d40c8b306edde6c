"""A desk: one thread that owns one connection. Calls wait in its queue, and what waits together is done together."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

Work = Callable[[Any], Any]  # takes what the desk serves: a Table or a Reading


class ConnectionCall:
    """One call on its way through a desk."""

    __slots__ = ("abandoned", "answer", "error", "future", "loop", "work")

    def __init__(self, work: Work, abandoned: Callable[[Any], None] | None = None) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.abandoned = abandoned  # told the answer if the caller was cancelled too late to stop the work
        self.answer: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.cancelled():
            if self.abandoned is not None and self.error is None and self.answer is not None:
                self.abandoned(self.answer)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class ConnectionThread:
    def __init__(self, name: str, serve: Callable[[list[ConnectionCall]], None]) -> None:
        self._queue: SimpleQueue[ConnectionCall | None] = SimpleQueue()
        self._serve = serve
        # A daemon: an engine that nobody closed must not keep the interpreter from leaving.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, work: Work, abandoned: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        job = ConnectionCall(work, abandoned)
        self._queue.put(job)
        return job.future

    def stop(self) -> None:
        """Leave once everything asked for so far is done."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        queue, open_ = self._queue, True
        while open_:
            waiting = [queue.get()]
            waiting += [queue.get_nowait() for _ in range(queue.qsize())]
            open_ = None not in waiting
            jobs = [job for job in waiting if job is not None]
            self._serve([job for job in jobs if not job.future.cancelled()])
            _answer(jobs)


def _answer(jobs: list[ConnectionCall]) -> None:
    """Wake each event loop once, not once a call: waking is what costs."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[ConnectionCall]](list)
    for job in jobs:
        by_loop[job.loop].append(job)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, some)
        except RuntimeError:  # the loop was closed, and its callers are gone with it
            continue


def _resolve(jobs: list[ConnectionCall]) -> None:
    for job in jobs:
        job.resolve()
