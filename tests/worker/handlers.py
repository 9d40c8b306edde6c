"""Handlers at the top of a module, where a child process can find them; the bad ones are bad on purpose."""

import asyncio
import os
import sys
import threading

never = threading.Event()


def fine(n: int = 0) -> int:
    return n


async def afine(n: int = 0) -> int:
    await asyncio.sleep(0)
    return n


def raises() -> None:
    raise ValueError("bad")


def exits() -> None:
    sys.exit(3)


async def aexits() -> None:
    sys.exit(3)


def blocks() -> None:
    never.wait()


async def ablocks() -> None:
    never.wait()


def spins() -> None:
    while True:
        pass


async def asleeps() -> None:
    await asyncio.Event().wait()


async def swallows() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def forks() -> None:
    os.fork()


async def aforks() -> None:
    os.fork()


def dies() -> None:
    os._exit(7)


async def adies() -> None:
    os._exit(7)


def eats() -> int:
    """Far more than one address space holds."""
    return len(bytearray(2**62))


def pid() -> int:
    return os.getpid()


async def interrupted() -> None:
    raise KeyboardInterrupt
