"""A call on its way to the bucket."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qo.sqlite_tables.table import Table


@dataclass(slots=True, eq=False)
class Call:
    work: Callable[[Table], Any]
    abandoned: Callable[[Any], None] | None = None  # told the answer if the caller has left
    answer: Any = None
    error: BaseException | None = None
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def tell(self, error: BaseException | None) -> None:
        """The caller's own answer; or that there is none, because the whole round failed."""
        error = error or self.error
        if self.done.done():
            if self.abandoned is not None and error is None:
                self.abandoned(self.answer)
        elif error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self.answer)
