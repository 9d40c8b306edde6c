"""A pytest plugin: the fixture `qo_app` puts the app that the setting `qo_app` names into test mode."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qo.testing.app_tester import AppTester


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("qo_app", "the qo app that the fixture qo_app tests, as module:name, such as tasks:app")


@pytest.fixture
def qo_app(request: pytest.FixtureRequest) -> "Iterator[AppTester]":
    """The app of the setting `qo_app`, in test mode: its tasks are kept in memory and run by `qo_app.drain()`."""
    from qo.app import App  # noqa: PLC0415 - sessions that do not use the fixture do not load qo

    place = str(request.config.getini("qo_app"))
    module, _, name = place.partition(":")
    if not place:
        raise pytest.UsageError("the fixture qo_app needs the setting qo_app = module:name, such as tasks:app")
    try:
        app = getattr(import_module(module), name or "app")
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"qo_app = {place}: {error}") from error
    if not isinstance(app, App):
        raise pytest.UsageError(f"qo_app = {place} is not a qo.App")
    with app.test_mode() as tester:
        yield tester
