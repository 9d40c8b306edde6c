"""`qo replay`: run failed, cancelled and archived tasks again."""

from collections.abc import Sequence
from typing import Any

import click

from qo.cli.bulk_actions import Verb, choosing, example, steer
from qo.cli.context import Invocation, common
from qo.client import Client
from qo.model import STATUSES, Guard, Status, replay


async def _many(client: Client, ids: Sequence[str]) -> list[bool]:
    return await client.apply([replay(task_id) for task_id in ids])


VERB = Verb(
    name="replay",
    done="replayed",
    takes=(Status.FAILED,),
    may=STATUSES[Guard.REPLAYABLE],
    one=Client.replay,
    many=_many,
)


@click.command(
    "replay", epilog=example("replay", "--status failed --type send_email", "--status failed --older-than 1h --yes")
)
@common
@choosing("replay", "failed")
def command(call: Invocation, ids: tuple[str, ...], **options: Any) -> int:
    """Make tasks pending again and reset their failures.

    Applies to failed, cancelled and archived tasks."""
    return steer(call, VERB, ids, **options)
