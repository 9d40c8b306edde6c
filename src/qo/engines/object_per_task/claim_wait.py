"""Waits for claimable tasks by polling less and less often. Changes by this process end the wait at once."""

import asyncio
from contextlib import suppress

from qo.clock import Clock
from qo.engines.object_per_task.ready import Ready
from qo.engines.polling import PollBackoff
from qo.model import ClaimRequest


class ClaimWait:
    def __init__(self, ready: Ready, clock: Clock) -> None:
        self._ready, self._clock = ready, clock
        self._changed = asyncio.Event()
        self._pauses = PollBackoff()

    def wake(self) -> None:
        self._pauses.start_over()
        self._changed.set()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        self._changed.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while (left := until - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._pauses.next, self._due_in())):
                    await self._changed.wait()
                    return
            if loop.time() >= until:
                return
            if self._due_in() <= 0 or await self._ready.candidates(request, number=1):
                self._pauses.start_over()
                return
            self._pauses.lengthen()

    def _due_in(self) -> float:
        """Seconds until the next task is due. If it does not match the request, a poll finds the next one."""
        return max(0.0, (self._ready.next_at or float("inf")) - self._clock())
