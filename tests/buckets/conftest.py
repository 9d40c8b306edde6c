"""Servers that only buckets need."""

import os
from itertools import count

import pytest

from tests.servers.azurite import azurite
from tests.servers.gcs import google
from tests.servers.ministack import ministack
from tests.servers.process import KEYS
from tests.servers.rclone import rclone

__all__ = ["azurite", "google", "ministack", "rclone"]

_numbers = count()


@pytest.fixture
def prefix() -> str:
    """A place in a shared bucket that no other test uses."""
    return f"{os.getpid()}/{next(_numbers)}"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials all our servers know."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
