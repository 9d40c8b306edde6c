"""When each token was last used: kept in memory with every request, written to the store about once a minute.

A note of its own, so that a server need not be able to write the tokens themselves.
"""

import asyncio
import logging

from msgspec import Struct

from qo import notes
from qo.engine import Engine
from qo.errors import QoError
from qo.web.tokens import TOKEN_USES, read_tokens

log = logging.getLogger("qo.web")
INTERVAL = 60.0  # seconds between two writes


class TokenUses(Struct, frozen=True, kw_only=True):
    used_at: dict[str, float] = {}  # by token id


class TokenUseRecorder:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: dict[str, float] = {}  # by token id: used since the last write

    def saw(self, token_id: str, now: float) -> None:
        self._seen[token_id] = now

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            await self.flush()

    async def flush(self) -> None:
        """Write what was seen since the last time. A store that refuses costs a line in the log, and no request."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            known = {token.id for token in (await read_tokens(self._engine)).tokens}

            def merged(before: TokenUses) -> TokenUses:
                """Of several servers, the latest. What is no token any more is forgotten."""
                used_at = before.used_at | {
                    token_id: max(at, before.used_at.get(token_id, 0.0)) for token_id, at in seen.items()
                }
                return TokenUses(used_at={each: at for each, at in used_at.items() if each in known})

            await notes.change(self._engine, TOKEN_USES, TokenUses, merged)
        except QoError as error:
            log.warning("when tokens were last used could not be written: %s", error)
            self._seen = seen | self._seen


async def read_token_uses(engine: Engine) -> TokenUses:
    return await notes.read_or(engine, TOKEN_USES, TokenUses, TokenUses())
