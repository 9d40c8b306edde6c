"""An interrupt of plain code that submits (Ctrl-C, a time limit, a signal handler) leaves no lock and loses no task."""

import ctypes
import dis
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from qo.client import Client
from qo.engines.sqlite import SqliteEngine, direct_connection
from qo.sync import SyncClient
from qo.testing.samples import new, task_id
from tests.alarms import on_alarm
from tests.engines.direct_writers import direct, opened, rows, write_locked


class Interrupt(BaseException): ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qo.db"


@pytest.fixture(autouse=True)
def _no_pending_exception() -> None:
    """Clear a flag of the interpreter that a test of a worker may have left in this process.

    It says that an exception waits for a thread, which may have ended. CPython 3.11 traces the same instruction forever
    while it is set. It is cleared when a thread receives such an exception.
    """
    with suppress(Interrupt):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Interrupt))
        while True:
            pass


_EVAL_POINTS = ("CALL", "RESUME", "JUMP_BACKWARD")


class SignalAt:
    """Handles a signal at one of the points at which CPython runs signal handlers: after a call, and at the start of a
    function. A call that raised has no such point.
    """

    def __init__(self, number: int, handle: Callable[[], None]) -> None:
        self._left, self._handle, self._previous = number, handle, dict[FrameType, str]()

    @property
    def is_handled(self) -> bool:
        return self._left <= 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if Path(frame.f_code.co_filename) != Path(direct_connection.__file__):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            previous = self._previous.get(frame, "RESUME")
            self._previous[frame] = name
            if previous.startswith(_EVAL_POINTS) and name != "PUSH_EXC_INFO":
                self._left -= 1
                if self._left == 0:
                    self._handle()
        return self


def _interrupt() -> None:
    raise Interrupt


def _interrupted(number: int, add: Callable[[], object], handle: Callable[[], None] = _interrupt) -> bool:
    """Whether there is such a point."""
    signal_at = SignalAt(number, handle)
    sys.settrace(signal_at)
    try:
        with suppress(Interrupt):
            add()
    finally:
        sys.settrace(None)
    return signal_at.is_handled


def test_an_interrupt_at_any_point_leaves_no_lock(path: Path) -> None:
    with opened(path) as engine, opened(path) as other:
        points = 0
        while _interrupted(points + 1, partial(engine.add_directly, [new(points)])):
            points += 1
            assert other.add_directly([new(1000 + points)]) == [(task_id(1000 + points), True)]
        assert points > 5
        assert engine.add_directly([new("last")]) == [(task_id("last"), True)]
    assert set(rows(path).values()) == {1}


def test_an_interrupt_of_a_write_that_found_a_lock_leaves_none(path: Path) -> None:
    with opened(path) as engine, direct(path) as (connection, lock):
        points = 0
        with write_locked(path):
            while _interrupted(points + 1, partial(connection.add, new(points), 0.0)):
                points += 1
                assert not lock.locked()
            assert points > 5
            assert not connection.add(new("refused"), 0.0)
        assert engine.add_directly([new("last")]) == [(task_id("last"), True)]
    assert rows(path) == {task_id("first"): 1, task_id("last"): 1}


@pytest.mark.parametrize("conflict", ["none", "a repeated id", "a locked file"])
def test_a_signal_handler_may_submit_at_any_point(path: Path, conflict: str) -> None:
    with opened(path), direct(path) as (connection, lock), ExitStack() as stack:
        if conflict == "a locked file":
            stack.enter_context(write_locked(path))
        answers, points = list[bool](), 0

        def submit() -> None:
            assert not lock.locked(), "the submit would wait for the code that it has interrupted"
            answers.append(connection.add(new(1000 + points), 0.0))

        def add() -> None:
            assert connection.add(new("first" if conflict == "a repeated id" else points), 0.0) == (conflict == "none")

        while _interrupted(points + 1, add, submit):
            points += 1
            assert not lock.locked()
        assert points > 5
        assert answers == [conflict != "a locked file"] * points


def test_interrupts_by_signals_lose_nothing_and_repeat_nothing(path: Path) -> None:
    """Up to two interrupts of each submit, at any moment."""
    left = 0

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal left
        while left and frame is not None:
            if frame.f_code is SqliteEngine.add_directly.__code__:
                left -= 1
                raise Interrupt
            frame = frame.f_back

    with opened(path) as engine, opened(path) as other:
        acknowledged, interrupted = list[int](), 0
        with no_garbage_collection(), on_alarm(interrupt, 0.0007, 0.0007):
            for n in range(300):
                left = 2
                with suppress(Interrupt):
                    engine.add_directly([new(n)])
                    acknowledged.append(n)
                interrupted += left < 2
        assert interrupted > 10
        assert engine.add_directly([new("one")]) == [(task_id("one"), True)]
        assert other.add_directly([new("two")]) == [(task_id("two"), True)]
    found = rows(path)
    assert set(found.values()) == {1}
    assert found.keys() >= {task_id(n) for n in acknowledged}


def test_a_signal_handler_may_submit_to_every_client_of_the_file(path: Path) -> None:
    handled = 0
    with (
        SyncClient(Client(SqliteEngine(path))) as client,
        SyncClient(Client(SqliteEngine(path))) as other,
        task_log_off(),
    ):

        def handle(*_: object) -> None:
            nonlocal handled
            for each in (client, other):
                each.enqueue("t")
            client.enqueue(f"new{handled}")  # through the event loop
            handled += 1
            signal.setitimer(signal.ITIMER_REAL, 0.005)

        client.enqueue("t")
        other.enqueue("t")
        with on_alarm(handle, 0.001):
            while handled < 20:
                client.enqueue("t")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """An interrupt during a collection reaches no caller: the interpreter ignores what callbacks raise."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def task_log_off() -> Iterator[None]:
    """A signal handler that interrupts a log call must not wait for a thread that logs."""
    log = logging.getLogger("qo.tasks")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)
