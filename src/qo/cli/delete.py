"""`qo delete`: delete finished tasks."""

from collections.abc import Sequence
from typing import Any

import click

from qo.cli.bulk_actions import Verb, choosing, example, steer
from qo.cli.context import Invocation, common
from qo.client import Client
from qo.model import FINISHED, Status


async def _many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.engine.delete(list(ids))


VERB = Verb(
    name="delete",
    done="deleted",
    takes=(Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ARCHIVED),
    may=FINISHED,
    one=Client.delete,
    many=_many,
)


@click.command("delete", epilog=example("delete", "--status archived --older-than 30d --yes"))
@common
@choosing("delete", "all finished")
def command(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Delete finished tasks and their history. This cannot be undone.

    A damaged task, as `qo doctor` names it, is removed by its ID.
    """
    return steer(call, VERB, ids, **options)
