"""Certifying a store before it is trusted with tasks: what it promises is tried, under a prefix of its own.

Everything rests on compare-and-set: a store that ignores conditions would hand one task to many workers.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from qo.bucket import ANY, NEW, Bucket
from qo.clock import Clock, system_clock
from qo.errors import Conflict, QoError, StorageError
from qo.findings import Finding
from qo.ids import new_token
from qo.url_secrets import hide_password

_RACERS = 8
_LITTLE, _MUCH = 5.0, 60.0  # seconds of distance between clocks: harmless below the one, refused above the other


class Trial(NamedTuple):
    """One scratch prefix of one store."""

    bucket: Bucket
    prefix: str
    races: int
    clock: Clock
    must_keep_versions: bool
    scheme: str

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"


async def certify(
    bucket: Bucket,
    url: str,
    *,
    races: int = 20,
    clock: Clock = system_clock,
    environ: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """What is right and wrong with a store. Nothing of the user's is touched, and nothing is left behind."""
    lenient = environ.get("QO_ALLOW_NO_VERSIONING", "").lower() in ("1", "true", "yes")
    trial = Trial(bucket, f"certify/{new_token()}", races, clock, not lenient, url.partition(":")[0])
    findings = await _permissions(trial, url)
    if all(finding.ok for finding in findings):
        findings += [await _answer(trial, name, question) for name, question in QUESTIONS.items()]
    await _tidy(trial)
    return findings


async def _answer(trial: Trial, name: str, question: "Question") -> Finding:
    try:
        return await question(trial)
    except QoError as error:  # goes to whoever asked for the diagnosis
        return Finding(name, False, f"this could not be tried: {error}")


async def _permissions(trial: Trial, url: str) -> list[Finding]:
    """Each kind of request once: what is missing is named, and the rest is not tried without it."""
    key = trial.key("permissions/a")
    findings = []
    for name, call in (
        ("write", lambda: trial.bucket.put(key, b"qo doctor", expected=ANY)),
        ("read", lambda: trial.bucket.get(key)),
        ("list", lambda: _listed(trial, "permissions/")),
        ("delete", lambda: trial.bucket.delete(key)),
    ):
        findings.append(await _may(name, url, call))
        if not findings[-1].ok:
            break
    return findings


async def _may(name: str, url: str, call: Callable[[], Awaitable[object]]) -> Finding:
    try:
        await call()
    except StorageError as error:
        return Finding(name, False, str(error))
    return Finding(name, True, f"one may {name} in {hide_password(url)}")


async def creations(trial: Trial) -> Finding:
    """A creation has exactly one winner."""
    winners = [await _race(trial, trial.key(f"creations/{number}"), NEW) for number in range(trial.races)]
    if max(winners) > 1:
        return Finding("creation", False, _crowd(winners, "If-None-Match"))
    if min(winners) < 1:
        return Finding("creation", False, "a race to create one object had no winner; try again, or use another store")
    return Finding("creation", True, f"one winner in each of {trial.races} races of {_RACERS}")


async def replacements(trial: Trial) -> Finding:
    """A compare-and-set write has exactly one winner."""
    winners = []
    for number in range(trial.races):
        key = trial.key(f"replacements/{number}")
        version = await trial.bucket.put(key, b"start", expected=ANY)
        winners.append(await _race(trial, key, version))
    if max(winners) > 1:
        return Finding("compare-and-set", False, _crowd(winners, "If-Match"))
    if min(winners) < 1:
        return Finding(
            "compare-and-set", False, "a race to replace one object had no winner; try again, or use another store"
        )
    return Finding("compare-and-set", True, f"one winner in each of {trial.races} races of {_RACERS}")


async def stale_writes(trial: Trial) -> Finding:
    """A write that expects an old version is refused."""
    key = trial.key("stale")
    first = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.put(key, b"2", expected=ANY)
    try:
        await trial.bucket.put(key, b"3", expected=first)
    except Conflict:
        return Finding("stale writes", True, "a write that expects an old version is refused")
    return Finding(
        "stale writes", False, "a write that expects an old version is taken (If-Match is ignored): do not use"
    )


async def missing_objects(trial: Trial) -> Finding:
    """A write that expects a version does not create."""
    key = trial.key("missing")
    version = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.delete(key)
    try:
        await trial.bucket.put(key, b"2", expected=version)
    except Conflict:
        return Finding("missing objects", True, "a write that expects a version does not bring back what was deleted")
    return Finding("missing objects", False, "a write that expects a version recreates what was deleted: do not use")


async def listings(trial: Trial) -> Finding:
    """What was written is listed at once, in order; what was deleted is not."""
    names = [f"listings/{number:03}" for number in range(20)]
    await asyncio.gather(*(trial.bucket.put(trial.key(name), b"", expected=ANY) for name in names))
    if await _listed(trial, "listings/") != [trial.key(name) for name in names]:
        return Finding(
            "listing", False, "objects just written are missing from the listing, or out of order: do not use"
        )
    await asyncio.gather(*(trial.bucket.delete(trial.key(name)) for name in names[::2]))
    if await _listed(trial, "listings/") != [trial.key(name) for name in names[1::2]]:
        return Finding("listing", False, "objects just deleted are still listed: do not use")
    return Finding("listing", True, "writes and deletions show at once, in order")


async def old_versions(trial: Trial) -> Finding:
    """Old versions are kept: they are the history of a task."""
    key = trial.key("versions")
    version = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.put(key, b"2", expected=version)
    kept = [blob.data for blob in await trial.bucket.versions(key)]
    if kept == [b"1", b"2"]:
        return Finding("versioning", True, "old versions are kept")
    forgets = "so a task remembers only its last transitions (64)"
    if trial.scheme in ("gs", "az"):
        return Finding("versioning", None, f"qo does not read old versions on {trial.scheme}://, {forgets}")
    if trial.scheme == "file":
        return Finding("versioning", None, f"old versions are not kept, {forgets}; versions=true in the URL keeps all")
    problem = f"old versions are not kept, {forgets}; turn versioning on (qo bucket-setup)"
    if trial.must_keep_versions:
        return Finding("versioning", False, f"{problem} or set QO_ALLOW_NO_VERSIONING=1")
    return Finding("versioning", None, f"{problem}; QO_ALLOW_NO_VERSIONING allows it")


async def clocks(trial: Trial) -> Finding:
    """Leases are reckoned by the store's clock, and signatures by ours."""
    await trial.bucket.put(trial.key("clock"), b"", expected=ANY)
    blob = await trial.bucket.get(trial.key("clock"))
    inner = abs(trial.bucket.now() - blob.written_at) if blob else 0.0
    if inner > _MUCH:
        return Finding("clock", False, f"the store dates its objects {inner:.0f} s off its own clock: do not use")
    distance = abs(trial.bucket.now() - trial.clock())
    if distance > _MUCH:
        return Finding("clock", False, f"this machine's clock is {distance:.0f} s off the store's; set it")
    if distance > _LITTLE:
        return Finding("clock", None, f"this machine's clock is {distance:.0f} s off the store's; better set it")
    return Finding("clock", True, "this machine and the store agree on the time")


Question = Callable[[Trial], Awaitable[Finding]]
QUESTIONS: dict[str, Question] = {
    "creation": creations,
    "compare-and-set": replacements,
    "stale writes": stale_writes,
    "missing objects": missing_objects,
    "listing": listings,
    "versioning": old_versions,
    "clock": clocks,
}


async def _race(trial: Trial, key: str, expected: str) -> int:
    """How many were told that they won. One whose request failed did not hear so: two winners are wrong even then."""

    async def run(number: int) -> bool:
        try:
            await trial.bucket.put(key, b"%d" % number, expected=expected)
        except (Conflict, StorageError):
            return False
        return True

    return sum(await asyncio.gather(*(run(number) for number in range(_RACERS))))


def _crowd(winners: list[int], header: str) -> str:
    lost = sum(number > 1 for number in winners)
    return (
        f"{lost} of {len(winners)} races had more than one winner, up to {max(winners)}: the store ignores {header}, "
        "and one task would run many times; do not use it"
    )


async def _listed(trial: Trial, folder: str) -> list[str]:
    return [key async for key in trial.bucket.keys(f"{trial.prefix}/{folder}")]


async def _tidy(trial: Trial) -> None:
    with contextlib.suppress(QoError):  # what could not be deleted was reported above
        keys: AsyncIterator[str] = trial.bucket.keys(f"{trial.prefix}/")
        await asyncio.gather(*[trial.bucket.delete(key) async for key in keys])
