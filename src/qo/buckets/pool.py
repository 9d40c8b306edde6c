"""Threads for calls that block: a bucket's own, so that nobody else's slow calls stand in its way."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from qo.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Threads start as they are needed, and end with the pool."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="qo-bucket")
        self._process = os.getpid()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._process:  # a fork has none of our threads and shares our connections
            raise StorageError("this bucket was opened before the process forked; open another in the child")
        if kwargs:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
