"""`qo cancel`: cancel pending and running tasks."""

from collections.abc import Sequence
from typing import Any

import click

from qo.cli.bulk_actions import Verb, choosing, example, steer
from qo.cli.context import Invocation, common
from qo.client import Client
from qo.model import UNFINISHED, Status, cancel


async def _many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([cancel(task_id) for task_id in ids])


VERB = Verb(
    name="cancel",
    done="cancelled",
    takes=(Status.PENDING, Status.RUNNING),
    may=UNFINISHED,
    one=Client.cancel,
    many=_many,
    age="created",
)


@click.command(
    "cancel", epilog=example("cancel", "--status pending --queue mail", "--type crawl --older-than 2d --yes")
)
@common
@choosing("cancel", "pending and running", "created")
def command(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Cancel pending and running tasks.

    A worker that runs one of them stops it at its next lease renewal."""
    return steer(call, VERB, ids, **options)
