"""Checks that a store behaves as qo requires, before it is used. The checks use a scratch prefix.

Correctness depends on compare-and-set: a store that ignores conditions would give one task to many workers.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from qo.bucket import ANY, NEW, Bucket
from qo.clock import Clock, system_clock
from qo.errors import Conflict, QoError, StorageError
from qo.ids import new_token
from qo.reports import Finding
from qo.safe_text import hide_password

_RACERS = 8  # concurrent writes per race
_CLOCK_WARNING, _MAX_CLOCK_DIFFERENCE = 5.0, 60.0


class Trial(NamedTuple):
    """One run of the checks, in one scratch prefix."""

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
    """Run all checks and return what is right and wrong. The user's data is not touched, and nothing is left behind."""
    lenient = environ.get("QO_ALLOW_NO_VERSIONING", "").lower() in ("1", "true", "yes")
    trial = Trial(bucket, f"certify/{new_token()}", races, clock, not lenient, url.partition(":")[0])
    findings = await _permissions(trial, url)
    if all(finding.ok for finding in findings):
        findings += [await _run_check(trial, name, check) for name, check in CHECKS.items()]
    await _clean_up(trial)
    return findings


async def _run_check(trial: Trial, name: str, check: "Check") -> Finding:
    try:
        return await check(trial)
    except QoError as error:
        return Finding(name, False, f"the check could not run: {error}")


async def _permissions(trial: Trial, url: str) -> list[Finding]:
    """Try each kind of request once, and stop at the first that is denied."""
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
    return Finding(name, True, f"the credentials may {name} in {hide_password(url)}")


async def creations(trial: Trial) -> Finding:
    """A creation must have exactly one winner."""
    winners = [await _race(trial, trial.key(f"creations/{number}"), NEW) for number in range(trial.races)]
    if max(winners) > 1:
        return Finding("creation", False, _many_winners(winners, "If-None-Match"))
    if min(winners) < 1:
        return Finding("creation", False, "a race to create one object had no winner; try again, or use another store")
    return Finding("creation", True, f"one winner in each of {trial.races} races of {_RACERS}")


async def replacements(trial: Trial) -> Finding:
    """A compare-and-set write must have exactly one winner."""
    winners = []
    for number in range(trial.races):
        key = trial.key(f"replacements/{number}")
        version = await trial.bucket.put(key, b"start", expected=ANY)
        winners.append(await _race(trial, key, version))
    if max(winners) > 1:
        return Finding("compare-and-set", False, _many_winners(winners, "If-Match"))
    if min(winners) < 1:
        return Finding(
            "compare-and-set", False, "a race to replace one object had no winner; try again, or use another store"
        )
    return Finding("compare-and-set", True, f"one winner in each of {trial.races} races of {_RACERS}")


async def stale_writes(trial: Trial) -> Finding:
    """A write that expects an old version must be refused."""
    key = trial.key("stale")
    first = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.put(key, b"2", expected=ANY)
    try:
        await trial.bucket.put(key, b"3", expected=first)
    except Conflict:
        return Finding("stale writes", True, "a write that expects an old version is refused")
    return Finding(
        "stale writes", False, "a write that expects an old version is accepted (If-Match is ignored): do not use"
    )


async def missing_objects(trial: Trial) -> Finding:
    """A write that expects a version must not create the object."""
    key = trial.key("missing")
    version = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.delete(key)
    try:
        await trial.bucket.put(key, b"2", expected=version)
    except Conflict:
        return Finding("missing objects", True, "a write that expects a version does not recreate a deleted object")
    return Finding("missing objects", False, "a write that expects a version recreates a deleted object: do not use")


async def listings(trial: Trial) -> Finding:
    """A listing must show writes and deletions immediately, and in order."""
    names = [f"listings/{number:03}" for number in range(20)]
    await asyncio.gather(*(trial.bucket.put(trial.key(name), b"", expected=ANY) for name in names))
    if await _listed(trial, "listings/") != [trial.key(name) for name in names]:
        return Finding(
            "listing", False, "objects just written are missing from the listing, or out of order: do not use"
        )
    await asyncio.gather(*(trial.bucket.delete(trial.key(name)) for name in names[::2]))
    if await _listed(trial, "listings/") != [trial.key(name) for name in names[1::2]]:
        return Finding("listing", False, "objects just deleted are still listed: do not use")
    return Finding("listing", True, "the listing shows writes and deletions immediately, and in order")


async def old_versions(trial: Trial) -> Finding:
    """The store should keep old versions: they are the history of a task."""
    key = trial.key("versions")
    version = await trial.bucket.put(key, b"1", expected=ANY)
    await trial.bucket.put(key, b"2", expected=version)
    stored = [blob.data for blob in await trial.bucket.versions(key)]
    if stored == [b"1", b"2"]:
        return Finding("versioning", True, "old versions are kept")
    consequence = "so the history of a task holds only its last 64 transitions"
    if trial.scheme in ("gs", "az"):
        return Finding("versioning", None, f"qo does not read old versions on {trial.scheme}://, {consequence}")
    if trial.scheme == "file":
        return Finding(
            "versioning", None, f"old versions are not kept, {consequence}; versions=true in the URL keeps them"
        )
    problem = f"old versions are not kept, {consequence}; turn versioning on (qo bucket-setup)"
    if trial.must_keep_versions:
        return Finding("versioning", False, f"{problem} or set QO_ALLOW_NO_VERSIONING=1")
    return Finding("versioning", None, f"{problem}; QO_ALLOW_NO_VERSIONING allows it")


async def clocks(trial: Trial) -> Finding:
    """Leases use the store's clock, and request signatures use this machine's."""
    await trial.bucket.put(trial.key("clock"), b"", expected=ANY)
    blob = await trial.bucket.get(trial.key("clock"))
    inner = abs(trial.bucket.now() - blob.written_at) if blob else 0.0
    if inner > _MAX_CLOCK_DIFFERENCE:
        return Finding("clock", False, f"the store dates objects {inner:.0f} s off its own clock: do not use")
    distance = abs(trial.bucket.now() - trial.clock())
    if distance > _MAX_CLOCK_DIFFERENCE:
        return Finding("clock", False, f"this machine's clock is {distance:.0f} s off the store's; set it")
    if distance > _CLOCK_WARNING:
        return Finding("clock", None, f"this machine's clock is {distance:.0f} s off the store's; consider setting it")
    return Finding("clock", True, "this machine and the store agree on the time")


Check = Callable[[Trial], Awaitable[Finding]]
CHECKS: dict[str, Check] = {
    "creation": creations,
    "compare-and-set": replacements,
    "stale writes": stale_writes,
    "missing objects": missing_objects,
    "listing": listings,
    "versioning": old_versions,
    "clock": clocks,
}


async def _race(trial: Trial, key: str, expected: str) -> int:
    """The number of writes that succeeded. A request that failed is not counted as a winner."""

    async def run(number: int) -> bool:
        try:
            await trial.bucket.put(key, b"%d" % number, expected=expected)
        except (Conflict, StorageError):
            return False
        return True

    return sum(await asyncio.gather(*(run(number) for number in range(_RACERS))))


def _many_winners(winners: list[int], header: str) -> str:
    broken = sum(number > 1 for number in winners)
    return (
        f"{broken} of {len(winners)} races had more than one winner, up to {max(winners)}: the store ignores {header}, "
        "so one task would run many times; do not use it"
    )


async def _listed(trial: Trial, folder: str) -> list[str]:
    return [key async for key in trial.bucket.keys(f"{trial.prefix}/{folder}")]


async def _clean_up(trial: Trial) -> None:
    with contextlib.suppress(QoError):  # a denied deletion is already in the findings
        keys: AsyncIterator[str] = trial.bucket.keys(f"{trial.prefix}/")
        await asyncio.gather(*[trial.bucket.delete(key) async for key in keys])
