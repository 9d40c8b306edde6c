"""One of many processes that use a folder at once. Prints what it did."""

import asyncio
import sys
from pathlib import Path

from qo.bucket import ANY, NEW
from qo.buckets.folder.bucket import FolderBucket
from qo.errors import Conflict


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def count(bucket: FolderBucket, me: str, turns: int, *, aloud: bool = False) -> int:
    done = 0
    while done < turns:
        blob = await bucket.get("counter")
        assert blob is not None
        number = int(blob.data.split()[0]) + 1
        try:
            await bucket.put("counter", f"{number} {me}".encode(), expected=blob.version)
        except Conflict:
            continue
        done += 1
        if aloud:
            tell(number)
    return done


async def create(bucket: FolderBucket, me: str) -> int:
    won = 0
    for number in range(50):
        try:
            await bucket.put(f"tasks/{number % 7}/{number}", me.encode(), expected=NEW)
        except Conflict:
            continue
        won += 1
    return won


async def churn(bucket: FolderBucket, me: str) -> None:
    for number in range(30):
        key = f"ready/{number % 3}/deep/{me}"
        await bucket.put(key, b"", expected=NEW)
        await bucket.put(key, b"x", expected=ANY)
        await bucket.delete(key)


async def main(folder: str, command: str, me: str) -> None:
    bucket = FolderBucket(Path(folder), versions=command == "count")
    if command == "count":
        tell(await count(bucket, me, 25))
    elif command == "create":
        tell(await create(bucket, me))
    elif command == "churn":
        await churn(bucket, me)
        tell("done")
    else:
        await count(bucket, me, 1_000_000, aloud=True)


asyncio.run(main(*sys.argv[1:]))
