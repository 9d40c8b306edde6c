"""Calls that a forked child of the process begins."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

from qo.errors import StorageError


async def errors_in_child(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[str]:
    """What the first step of each call raises in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        errors = []
        for call in calls:
            try:
                call.send(None)
                errors.append("no error")
            except StorageError as error:
                errors.append(str(error))
            except BaseException as error:  # noqa: BLE001 - goes to the parent
                errors.append(repr(error))
        os.write(write, "\n".join(errors).encode())
        os._exit(0)
    os.close(write)
    errors = (await asyncio.to_thread(os.read, read, 10_000)).decode().splitlines()
    os.close(read)
    await asyncio.to_thread(os.waitpid, child, 0)
    for call in calls:
        call.close()
    return errors
