"""The tasks of the project."""

import sys
from typing import Any

from qo.django.framework import TaskContext
from tests.django_project.framework import task

calls: list[Any] = []


@task()
def add(one: int, other: int = 1) -> int:
    calls.append((one, other))
    return one + other


@task(queue_name="mail", priority=50)
async def send(to: str) -> str:
    return f"sent to {to}"


@task(takes_context=True)
def attempt(context: TaskContext, name: str) -> list[Any]:
    return [name, context.attempt, context.task_result.id]


@task()
def fail() -> None:
    raise KeyError("no such thing")


@task()
def leave() -> None:
    sys.exit(3)


@task()
def unserialisable() -> object:
    return object()
