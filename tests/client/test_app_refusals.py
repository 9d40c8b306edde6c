"""What an app refuses, where it is written."""

import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import qo
from qo.app import App
from qo.errors import InvalidSetting, InvalidTask
from qo.model import RetryPolicy


@pytest.fixture
def app() -> Iterator[App]:
    """In memory: nothing is stored."""
    app = App("memory://")
    yield app
    app.close()


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((5, "hi"), {}, "Expected `str`, got `int` - at `$.to`"),
        (("a",), {"subject": None}, "Expected `str`, got `null` - at `$.subject`"),
        (("a", "hi"), {"copies": "two"}, "Expected `int`, got `str` - at `$.copies`"),
        (("a",), {}, "missing a required argument: 'subject'"),
        (("a", "hi"), {"cc": "b"}, "got an unexpected keyword argument 'cc'"),
        (("a", "b", 1, 2), {}, "too many positional arguments"),
        (("a", "\ud800"), {}, "lone surrogate"),
        (("a", object()), {}, "cannot be written as JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_the_function_does_not_take_are_refused_by_name(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    @app.task
    def send(to: str, subject: str, copies: int = 1) -> None: ...

    enqueue: Callable[..., object] = send.enqueue
    with pytest.raises(InvalidTask, match=r"^payload: ") as caught:
        enqueue(*args, **kwargs)
    assert says in str(caught.value)
    assert app.tasks() == []


@pytest.mark.parametrize("type", ["send", "undeclared"])
async def test_an_argument_of_a_task_among_the_options_of_enqueue_is_refused(app: App, type: str) -> None:
    @app.task
    def send(to: str) -> None: ...

    enqueue: Callable[..., object] = app.enqueue
    with pytest.raises(InvalidTask, match=r"there is no option 'to'; .*\. Pass the arguments of the task as a dict"):
        enqueue(type, to="ada@example.com")
    assert app.tasks() == []
    async with qo.connect("memory://") as client:
        submit: Callable[..., Awaitable[object]] = client.enqueue
        with pytest.raises(InvalidTask, match="there is no option 'prioritty'; did you mean 'priority'"):
            await submit(type, {}, prioritty="high")


def test_an_option_that_does_not_exist_is_refused_with_the_one_that_may_be_meant(app: App) -> None:
    declare: Callable[..., Any] = app.task
    with pytest.raises(InvalidSetting, match="task work: there is no option 'max_retry'; did you mean 'max_retries'"):

        @declare(max_retry=5)
        def work() -> None: ...

    with pytest.raises(InvalidSetting, match=r"no option 'cron'; the options are: .*concurrency, .*, name, "):

        @declare(cron="0 3 * * *")
        def another() -> None: ...

    schedule: Callable[..., Any] = app.schedule
    with pytest.raises(InvalidTask, match="schedule: there is no option 'tmezone'; did you mean 'timezone'"):

        @schedule("0 3 * * *", tmezone="UTC")
        @app.task
        def nightly() -> None: ...


def test_arguments_that_cannot_travel_by_name_are_refused_where_they_are_written(app: App) -> None:
    with pytest.raises(InvalidSetting, match=r"many: arguments are stored by name, so \*args"):

        @app.task
        def many(*args: int) -> None: ...

    with pytest.raises(InvalidSetting, match="positional-only"):

        @app.task
        def positional(a: int, /) -> None: ...


async def coroutine() -> None: ...


def plain() -> None: ...


LOCK = threading.Lock()


class Machine: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def takes_a_lock(lock: threading.Lock = LOCK) -> None: ...


def takes_five(number: 5 = 5) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (generator, "generator is a generator, whose result cannot be stored; return a list"),
        (async_generator, "async_generator is a generator"),
        (Machine, "Machine is a class, so it cannot handle tasks"),
        (int, "int is a class"),
        (5, "5 is not a function"),
        (functools.partial(plain), r"functools.partial\(.*\) has no name; pass name="),
        (functools.partial(max, 1), r"the arguments of functools.partial\(.*\) are not known"),
        (takes_five, "takes_five: an argument of this type cannot be stored as JSON"),
        (takes_a_lock, "takes_a_lock: an argument of this type cannot be stored as JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_handle_tasks_is_refused_where_it_is_written(app: App, function: Any, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        app.task(function)
    assert len(app.registry) == 0


def test_an_annotation_that_only_type_checkers_know_leaves_the_others_in_force(app: App) -> None:
    @app.task
    def send(to: "Address", copies: int, note: "a few words" = "") -> None: ...  # type: ignore[name-defined,valid-type] # noqa: F722,F821

    enqueue: Callable[..., object] = send.enqueue
    with pytest.raises(InvalidTask, match=r"Expected `int`, got `str` - at `\$.copies`"):
        enqueue(to="ada@example.com", copies="two")
    enqueue(to="ada@example.com", copies=2, note=3)
    assert len(app.tasks()) == 1


def test_two_functions_of_one_name_are_refused(app: App) -> None:
    def first() -> None: ...

    def second() -> None: ...

    app.task(name="same")(first)
    app.task(name="same")(first)
    with pytest.raises(InvalidSetting, match="two functions are declared for the type 'same'; rename one of them"):
        app.task(name="same")(second)
    assert len(app.registry) == 1


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (coroutine, {"executor": "thread"}, "coroutine is async: run it with executor='async' or 'process'"),
        (plain, {"executor": "async"}, "plain is not async: run it with executor='thread' or 'process'"),
        (plain, {"executor": "gpu"}, "executor='gpu' is not one of: async, thread, process"),
        (plain, {"time_limit": 5}, "there is no option 'time_limit'"),
        (plain, {"timeout": 0}, "timeout: 0 must be greater than 0"),
        (plain, {"timeout": float("nan")}, "timeout: nan is not a finite number"),
        (plain, {"max_retries": -1}, "max_retries: -1 is not a whole number"),
        (plain, {"rate_limit": -1}, "rate_limit: -1 must be at least 0"),
        (plain, {"rate_limit": "10"}, "rate_limit: '10' is not a finite number"),
        (plain, {"concurrency": 1.5}, "concurrency: 1.5 is not a whole number"),
        (plain, {"priority": "urgent"}, "priority: 'urgent' is not high, medium, low"),
        (plain, {"queue": "a/b"}, "queue: 'a/b' is not a name"),
        (plain, {"needs": ["a b"]}, "needs: 'a b' is not a name"),
        (plain, {"needs": "gpu"}, "needs: 'gpu' is not a list of names"),
        (plain, {"name": "a b"}, "type: 'a b' is not a type"),
        (plain, {"name": ""}, "type: '' is not a type"),
        (plain, {"retry": 3}, "retry: 3 is not a qo.RetryPolicy"),
        (plain, {"retry": RetryPolicy(jitter=3)}, "retry.jitter: 3 must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_make_no_sense_are_refused_where_they_are_written(
    app: App, function: Callable[[], Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises((InvalidSetting, InvalidTask)) as caught:
        app.task(**options)(function)
    assert says in str(caught.value)
    assert len(app.registry) == 0


def test_current_task_outside_a_handler_is_a_clear_error() -> None:
    with pytest.raises(InvalidSetting, match=r"current_task\(\) can be called only inside a handler"):
        qo.current_task()


def test_a_delay_and_a_time_are_refused_together_wherever_a_task_is_described(app: App) -> None:
    """One of them would be ignored."""
    send = app.task(name="send")(plain)
    both = send.using(delay=60, run_at=4e9)
    flow = app.workflow("w")
    for call in (both.enqueue, lambda: flow.add(both.s())):
        with pytest.raises(InvalidTask, match=r"^delay: .* run_at"):
            call()
    assert send.using(delay=0, run_at=4e9).describe().run_at == 4e9
