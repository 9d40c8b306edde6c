"""Log lines reach their stream in order, whoever writes them and whatever happens to the process or the stream."""

import fcntl
import io
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.line_handler import MAX_WAITING, LineHandler
from tests.conditions import wait_until


class Stream(io.StringIO):
    """Counts the writes, can hold one back, and fails while it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.is_broken = False
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, text: str) -> int:
        self.may_write.wait(30)
        if self.is_broken:
            raise BrokenPipeError("the reader has gone")
        self.writes.append(text)
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def log(stream: Stream) -> Iterator[logging.Logger]:
    """Its lines below WARNING are routine."""
    logger = logging.getLogger("test_line_handler")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = LineHandler(stream, lambda record: record.levelno < logging.WARNING)
    logger.handlers[:] = [handler]
    yield logger
    stream.may_write.set()
    handler.close()
    logger.handlers.clear()


def test_a_line_that_is_not_routine_is_written_before_the_call_returns(log: logging.Logger, stream: Stream) -> None:
    log.info("one")
    log.warning("two")
    assert stream.lines == ["one", "two"]


def test_routine_lines_are_written_soon_and_in_order(log: logging.Logger, stream: Stream) -> None:
    expected = [str(number) for number in range(500)]
    for line in expected:
        log.info(line)
    wait_until(lambda: len(stream.lines) == len(expected))
    assert stream.lines == expected


def test_routine_lines_that_wait_are_written_in_one_call(log: logging.Logger, stream: Stream) -> None:
    stream.may_write.clear()
    expected = [str(number) for number in range(100)]
    for line in expected:
        log.info(line)
    stream.may_write.set()
    wait_until(lambda: len(stream.lines) == len(expected))
    assert stream.lines == expected
    assert len(stream.writes) <= 3  # the first line, the others, and one that came in between


def test_no_write_is_larger_than_a_pipe_takes_in_one_piece(log: logging.Logger, stream: Stream) -> None:
    expected = [f"{number} {'é' * (number % 90)}" for number in range(500)] + ["x" * (2 * select.PIPE_BUF), "last"]
    stream.may_write.clear()
    for line in expected:
        log.info(line)
    stream.may_write.set()
    wait_until(lambda: len(stream.lines) == len(expected))
    assert stream.lines == expected
    sizes = [len(text.encode()) for text in stream.writes if text.count("\n") > 1]
    assert max(sizes) <= select.PIPE_BUF
    assert all(text.endswith("\n") for text in stream.writes)


def test_a_stream_that_is_not_read_holds_the_program_up(log: logging.Logger, stream: Stream) -> None:
    stream.may_write.clear()
    logged: list[int] = []

    def log_many() -> None:
        for number in range(4 * MAX_WAITING):
            log.info("%d", number)
            logged.append(number)

    thread = threading.Thread(target=log_many)
    thread.start()
    wait_until(lambda: len(logged) >= MAX_WAITING)
    thread.join(0.1)
    assert len(logged) <= 2 * MAX_WAITING + 1  # those that wait, and those of the write that does not return
    stream.may_write.set()
    thread.join(30)
    wait_until(lambda: len(stream.lines) == 4 * MAX_WAITING)


def test_lines_of_many_threads_are_all_written_once(log: logging.Logger, stream: Stream) -> None:
    def log_many(name: str) -> None:
        for number in range(300):
            (log.warning if number % 50 == 0 else log.info)("%s %d", name, number)

    threads = [threading.Thread(target=log_many, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(stream.lines) == 8 * 300)
    for name in "abcdefgh":
        assert [line for line in stream.lines if line[0] == name] == [f"{name} {number}" for number in range(300)]


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_a_broken_stream_loses_lines_and_nothing_else(
    log: logging.Logger, stream: Stream, capsys: pytest.CaptureFixture[str], level: int
) -> None:
    stream.is_broken = True
    log.log(level, "lost")
    wait_until(lambda: "the reader has gone" in capsys.readouterr().err)
    stream.is_broken = False
    log.log(level, "found")
    wait_until(lambda: stream.lines == ["found"])


def test_a_filter_and_the_level_of_the_handler_apply(log: logging.Logger, stream: Stream) -> None:
    log.handlers[0].addFilter(lambda record: record.getMessage() != "secret")
    log.handlers[0].setLevel(logging.WARNING)
    log.info("too low")
    log.warning("secret")
    log.warning("shown")
    assert stream.lines == ["shown"]


def test_a_closed_handler_writes_immediately(log: logging.Logger, stream: Stream) -> None:
    log.info("one")
    log.handlers[0].close()
    log.info("two")
    assert stream.lines == ["one", "two"]


_PROGRAM = """
import logging, os, signal, sys
from qo.line_handler import LineHandler
log = logging.getLogger("program")
log.setLevel(logging.INFO)
log.addHandler(LineHandler(sys.stderr, lambda record: record.levelno < logging.WARNING))
"""


def _stderr_of(program: str) -> list[str]:
    words = [sys.executable, "-c", _PROGRAM + program]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, check=False).stderr.splitlines()


def test_lines_of_processes_that_share_a_pipe_are_not_mixed() -> None:
    program = _PROGRAM + "for number in range(6000): log.info('%s %d %s', sys.argv[1], number, 'x' * 90)"
    reader, writer = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)  # so that each process has lines that wait
    processes = [subprocess.Popen([sys.executable, "-c", program, name], stderr=writer) for name in "abc"]
    os.close(writer)
    data = bytearray()
    while read := os.read(reader, select.PIPE_BUF):
        data += read
    os.close(reader)
    assert [process.wait() for process in processes] == [0, 0, 0]
    lines = data.decode().splitlines()
    for name in "abc":
        assert [line for line in lines if line[0] == name] == [f"{name} {number} {'x' * 90}" for number in range(6000)]
    assert len(lines) == 3 * 6000


def test_a_process_that_ends_has_written_its_lines() -> None:
    assert _stderr_of("for number in range(50): log.info('%d', number)") == [str(number) for number in range(50)]


def test_a_process_that_is_killed_has_written_what_came_before_a_warning() -> None:
    assert _stderr_of("log.info('one'); log.warning('two'); os.kill(os.getpid(), signal.SIGKILL)") == ["one", "two"]


def test_a_forked_process_writes_its_own_lines_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    program = f"""
log.handlers[:] = [LineHandler(open({str(path)!r}, "a"), lambda record: True)]
for number in range(20): log.info("of the parent %d", number)
pid = os.fork()  # while lines of the parent wait
if not pid:
    for number in range(20): log.info("of the child %d", number)
    os._exit(0)
os.waitpid(pid, 0)
"""
    assert _stderr_of(program) == []
    written = path.read_text("utf-8").splitlines()
    for who in ("child", "parent"):
        assert [line for line in written if who in line] == [f"of the {who} {number}" for number in range(20)]


def test_a_signal_handler_may_log_at_any_moment() -> None:
    program = """
count = 0
def interrupt(*_):
    global count
    count += 1
    log.info("signal") if count % 2 else log.warning("signal")
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
number = 0
while count < 300:
    number += 1
    (log.info if number % 3 else log.warning)("line")
signal.setitimer(signal.ITIMER_REAL, 0)
log.warning("%d %d", number, count)
"""
    *lines, last = _stderr_of(program)
    number, count = map(int, last.split())
    assert (lines.count("line"), lines.count("signal")) == (number, count)
    assert len(lines) == number + count
