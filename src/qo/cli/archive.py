"""`qo archive`: archive finished tasks."""

from collections.abc import Sequence
from typing import Any

import click

from qo.cli.bulk_actions import Verb, choosing, example, steer
from qo.cli.context import Invocation, common
from qo.client import Client
from qo.model import STATUSES, Guard, Status, archive


async def _many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([archive(task_id) for task_id in ids])


VERB = Verb(
    name="archive",
    done="archived",
    takes=(Status.COMPLETED, Status.FAILED, Status.CANCELLED),
    may=STATUSES[Guard.ENDED],
    one=Client.archive,
    many=_many,
)


@click.command("archive", epilog=example("archive", "--status completed --older-than 7d --yes"))
@common
@choosing("archive", "completed, failed and cancelled")
def command(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Remove finished tasks from the default listing. They keep their history and can be replayed."""
    return steer(call, VERB, ids, **options)
