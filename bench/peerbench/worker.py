"""Entry point of a worker process: python -m peerbench.worker <adapter>."""

import asyncio
import inspect
import logging
import sys

from adapters import ADAPTERS

from peerbench.base import Settings


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    adapter = ADAPTERS[sys.argv[1]](Settings.from_env())
    if inspect.iscoroutinefunction(adapter.run_worker):
        asyncio.run(adapter.run_worker())
    else:
        adapter.run_worker()


if __name__ == "__main__":
    main()
