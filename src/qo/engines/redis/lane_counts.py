"""How many tasks there are in each lane, asked in steps: a script that counts many lanes would keep others waiting."""

from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.task_fields import STATUSES
from qo.model import Status

_STEP = 500  # lanes


async def counted(calls: ScriptRunner) -> dict[tuple[bytes, Status], int]:
    """By lane and status; zeros are missing."""
    counts: dict[tuple[bytes, Status], int] = {}
    statuses, offset = list(STATUSES), 0
    while statuses:
        answers = await calls.many("count", [(status.value, offset, _STEP) for status in statuses])
        for status, rows in zip(statuses, answers, strict=True):
            counts |= {(lane, status): number for lane, number in zip(rows[::2], rows[1::2], strict=True)}
        statuses = [status for status, rows in zip(statuses, answers, strict=True) if len(rows) == 2 * _STEP]
        offset += _STEP
    return {place: number for place, number in counts.items() if number}
