"""The bar that commands draw while something takes long."""

import io

import pytest

from qo.cli.output import shown_progress
from qo.reports import show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with shown_progress(terminal):
        show("loading the queue", 20_000_000, 80_000_000)
        assert "loading the queue" in terminal.getvalue()
        assert "20.0/80.0 MB" in terminal.getvalue()
        show("loading the queue", 80_000_000, 80_000_000)
        drawn = terminal.getvalue()
        assert drawn.endswith("\x1b[2K")  # the line is erased
    show("loading the queue", 1, 2)
    assert terminal.getvalue() == drawn


def test_nothing_is_drawn_into_a_file() -> None:
    file = io.StringIO()
    with shown_progress(file):
        show("loading the queue", 1, 2)
    assert file.getvalue() == ""
