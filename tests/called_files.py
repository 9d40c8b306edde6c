"""A program that prints the files of qo that one task calls, in the order of the first call: `enqueue` or `claim`.

It is a process of its own. In Python 3.11 a function that is profiled never starts while an exception for any other
thread is pending (PyThreadState_SetAsyncExc), and tests of the worker leave such threads behind.
"""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

import qo
from qo.client import Client
from qo.engines import open_engine
from qo.worker import Worker, WorkerSettings

FOLDER = f"{Path(qo.__file__).parent}{os.sep}"


class CalledFiles:
    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.is_on = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if self.is_on and event == "call" and file.startswith(FOLDER):
            self.names[Path(file.removeprefix(FOLDER)).as_posix()] = None


def enqueue(called: CalledFiles) -> None:
    app = qo.App("sqlite:///queue.db")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    for _ in range(2):
        add.enqueue(1, 2)  # these open the file and the connection
    called.is_on = True
    add.enqueue(3, 4)
    called.is_on = False
    app.close()


def claim(called: CalledFiles) -> None:
    url = f"file://{Path.cwd()}/bucket?layout=tasks"
    app = qo.App(url)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async def work() -> None:
        async with Client(open_engine(url)) as client:
            await Worker(client, app.registry, WorkerSettings(drain=True)).run()

    add.enqueue(1, 2)
    called.is_on = True
    asyncio.run(work())
    called.is_on = False
    app.close()


if __name__ == "__main__":
    files = CalledFiles()
    threading.setprofile(files.profile)
    sys.setprofile(files.profile)
    {"enqueue": enqueue, "claim": claim}[sys.argv[1]](files)
    sys.setprofile(None)
    print(json.dumps([*files.names]))  # noqa: T201
