"""qo.sync has every public method of the async classes, with the same arguments: editors and type checkers see them."""

import inspect

import pytest

from qo.client import Client, Consumer, Producer, TaskHandle
from qo.controls import ControlsClient
from qo.sync import SyncClient, SyncConsumer, SyncControlsClient, SyncProducer, SyncTaskHandle

INTERNAL = {"submit_directly", "resolve_duplicate"}  # what the two sides use between them


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (SyncClient, Client),
        (SyncConsumer, Consumer),
        (SyncProducer, Producer),
        (SyncControlsClient, ControlsClient),
        (SyncTaskHandle, TaskHandle),
    ],
)
def test_each_method_has_a_blocking_form_with_the_same_arguments(blocking: type, awaited: type) -> None:
    for name, method in inspect.getmembers(awaited, inspect.isfunction):
        if name.startswith("_") or name in INTERNAL:
            continue
        twin = getattr(blocking, name)
        assert not inspect.iscoroutinefunction(twin), name
        given, expected = inspect.signature(twin).parameters, inspect.signature(method).parameters
        assert list(given.values()) == list(expected.values()), name


def test_each_method_of_a_handle_and_of_an_app_has_an_awaited_form() -> None:
    from qo.app import App, Enqueuer  # noqa: PLC0415 - only here

    for kind, names in (
        (SyncTaskHandle, ("status", "refresh", "cancel", "result")),
        (App, ("enqueue", "submit", "get", "tasks", "cancel", "replay")),
        (Enqueuer, ("enqueue",)),
    ):
        for name in names:
            assert inspect.iscoroutinefunction(getattr(kind, f"a{name}"))
            parameters = inspect.signature(getattr(kind, name)).parameters
            assert parameters == inspect.signature(getattr(kind, f"a{name}")).parameters
