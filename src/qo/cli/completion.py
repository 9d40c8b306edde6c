"""Completion of types, queues, workers and ids of tasks: read from the store, within a second, silent if it fails."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from qo.client import Client

_TIMEOUT = 1.0  # seconds
_MAX_IDS = 200  # newest tasks whose ids are offered
_MAX_ITEMS = 100

Items = list[tuple[str, str]]  # values and what to show next to them


def complete_types(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _listed(ctx, incomplete, _types)


def complete_queues(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _listed(ctx, incomplete, _queues)


def complete_workers(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, _workers)


def complete_ids(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete.lower(), _ids)


async def _types(client: "Client") -> Items:
    names = {key.type for key in await client.engine.count()}
    names |= {name for worker in await client.workers() for name in worker.types}
    return [(name, "") for name in sorted(names)]


async def _queues(client: "Client") -> Items:
    names = {key.queue for key in await client.engine.count()}
    names |= {name for worker in await client.workers() for name in worker.queues}
    return [(name, "") for name in sorted(names)]


async def _workers(client: "Client") -> Items:
    return [(worker.worker_id, worker.status) for worker in await client.workers()]


async def _ids(client: "Client") -> Items:
    from qo.model import Filter  # noqa: PLC0415 - help texts do not import it

    tasks = await client.engine.find_without_values(Filter(), limit=_MAX_IDS)
    return [(task.id, f"{task.type} {task.status}") for task in tasks]


def _listed(ctx: click.Context, incomplete: str, read: Callable[["Client"], Awaitable[Items]]) -> list[CompletionItem]:
    """Complete the last name of a list with commas."""
    head, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{head}{comma}{item.value}", help=item.help) for item in _complete(ctx, last, read)]


def _complete(
    ctx: click.Context, incomplete: str, read: Callable[["Client"], Awaitable[Items]]
) -> list[CompletionItem]:
    import asyncio  # noqa: PLC0415 - help texts do not import it

    from qo.cli.context import Invocation  # noqa: PLC0415 - it imports this module

    call = Invocation(url=ctx.params.get("url") or ctx.find_root().params.get("url"))

    async def work(client: "Client") -> Items:
        async with asyncio.timeout(_TIMEOUT):
            return await read(client)

    try:
        items = call.run(work)
    except Exception:  # noqa: BLE001 - a shell shows nothing but completions
        return []
    matching = [(value, shown) for value, shown in items if value.startswith(incomplete)]
    return [CompletionItem(value, help=shown) for value, shown in matching[:_MAX_ITEMS]]
