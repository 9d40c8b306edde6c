"""Hostile calls to the engine port: requests that are nearly right, drawn from a seed.

Each request starts from one that makes sense. Then some fields get values that a store may choke on, and some bytes of
the encoded request are damaged.
"""

import random
import types
import typing
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from math import inf, nan
from typing import Any, NamedTuple

import httpx
import msgspec

from qo import wire
from qo.testing.samples import task_id

IDS = [task_id(n) for n in range(12)]
READS = (
    "/api/v1/tasks",
    "/api/tasks",
    "/api/v1/dashboard/tasks",
    "/api/v1/dashboard/overview",
    "/api/v1/queue/stats",
    "/api/v1/workers",
    "/api/v1/controls",
    "/metrics",
    f"/api/v1/tasks/{IDS[0]}",
    f"/api/tasks/{IDS[1]}",
    f"/api/v1/dashboard/tasks/{IDS[2]}",
)

TEXTS = [
    "", "a", "a\x00b", "\x00", "é", "\u202e", "\x1b[31m", "x" * 129, "x" * 5_000, "../..", "a/b", "a.json/b", "a//b",
    "/", "%00", "%2e%2e", "*", "'", '"', "\\", "{}", "$1", "nan~", "inf~", "1e999~", "~", "-1~", "1~zzz", "nan", "any",
    f"1.0~{IDS[0]}", f"1.0~{IDS[0].upper()}", f"nan~{IDS[0]}", f"1.0~{IDS[0]}\x00", "1_0~", "workers/w", "workers/",
    "tokens", "quarantine/tasks/x", "control", "types", "monitor", "stats/2026-01-01T00/x", "stats/x", "a" * 64,
    "new", "\ufeff", IDS[0].upper(), IDS[0] + "\n", IDS[0].replace("-", ""), "g" * 36, "é" * 64, "0" * 400,
]  # fmt: skip
INTEGERS = [-(2**63), -(2**31) - 1, -1, 0, 1, 9, 10, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [nan, inf, -inf, -1.0, -0.0, 0.0, 5e-324, 1e-9, 1.5, 1e10, 3.2e9, 3.3e9, 2.6e11, 1e300, 1.8e308, -1e300]
DATA = [b"", b"null", b"\x00raw", b"\xff", b'"\xff"', b"{", b"[" * 5_000, b'"\\u0000"', b"x" * 70_000, b'{"a": NaN}']
NOTES = [
    b"{}",
    b"[]",
    b"\xff",
    b'{"types": 5}',
    b'{"paused": "x"}',
    b'{"worker_id": "w", "started_at": 1e300}',
    b"[" * 5_000,
]

# Values that make sense, by the field's name: without them few calls would reach a store.
USUAL: dict[str, list[Any]] = {
    "id": IDS,
    "next_id": [None, *IDS],
    "queue": ["q", "other"],
    "type": ["t", "mail/x@y+1"],
    "queues": [[], ["q"], ["q", "other"]],
    "types": [[], ["t"]],
    "needs": [[], ["gpu"]],
    "capabilities": [[], ["gpu"]],
    "shards": [[], ["0"], ["0", "f"]],
    "worker_id": ["w", "w2", None],
    "lease_id": ["lease-1", "lease-2"],
    "lease": [30.0, None],
    "limit": [1, 5],
    "after": ["", f"1.0~{IDS[0]}"],
    "name": ["control", "types", "monitor", "workers/w", "stats/2026-01-01T00/x", "other"],
    "data": NOTES,
    "expected": ["any", "new"],
    "payload": [b"null", b"\x00raw", b'{"a": 1}'],
    "result": [None, b"1"],
    "error": [None, "e"],
    "timeout": [0.001],
    "idempotency_key": [None, "k"],
    "priority": [0, 5, 9],
    "max_retries": [0, 3],
    "window": [60.0, inf],
    "ageing": [200.0, inf, 0.0],
    "failures": [None, 0, 1],
    "trace_id": [None, "trace"],
    "run_at": [None, 1.0e9],
    "started_at": [None, 1.0e9],
    "delay": [0.0, None, 10.0],
    "grace": [0.0, 5.0],
    "expired_for": [None, 1.0],
    "finished_for": [None, 1.0],
    "per_type_limits": [{}, {"t": 1}],
}
NAMELESS: dict[str, list[Any]] = {"history": IDS, "read_note": USUAL["name"], "notes": ["", "workers/", "stats/"]}


SIMPLE: dict[Any, list[Any]] = {types.NoneType: [None], bool: [True, False], str: ["a"], int: [0, 1]}


def usual_of(hint: Any) -> list[Any]:
    """Values of this type, for fields that USUAL does not name."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [value for each in inner for value in usual_of(each)]
    if origin is typing.Literal:
        return [*inner]
    if origin in (tuple, list, frozenset):
        return [[], *([value] for value in usual_of(inner[0]))]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [each.value for each in hint]
    return SIMPLE.get(hint, [1.0, 2.0])


class Trouble(NamedTuple):
    """An answer that nobody should get, and what was asked."""

    path: str
    body: bytes
    status: int
    answer: str


class PortFuzz:
    """`odds`: in how many of a hundred fields a value makes no sense."""

    def __init__(self, http: httpx.AsyncClient, seed: int, *, odds: int = 12) -> None:
        self._http, self._dice, self._odds = http, random.Random(seed), odds
        self.statuses: Counter[int] = Counter()
        self.troubles: list[Trouble] = []

    async def run(self, calls: int) -> None:
        names = sorted(wire.REQUESTS)
        for number in range(calls):
            call = names[number % len(names)]
            body = self.body(call)
            answer = await self._http.post(f"{wire.PATH}/{call}", content=body, headers=self._headers())
            self._note(f"{wire.PATH}/{call}", body, answer)
            if number % 25 == 0:  # what was stored must not break a page either
                path = self._dice.choice(READS)
                self._note(path, b"", await self._http.get(path))

    async def read_all(self) -> None:
        for path in READS:
            self._note(path, b"", await self._http.get(path))

    def body(self, call: str) -> bytes:
        kind = wire.REQUESTS[call]
        value = None if kind is None else self._value(kind, NAMELESS.get(call, IDS))
        data = msgspec.msgpack.encode(value)
        return self._damaged(data) if self._dice.randrange(10) == 0 else data

    def _headers(self) -> dict[bytes, bytes]:
        name = self._dice.choice([b"", b"", b"a", b"b", b"x" * 128, b"x" * 129, b"\x7f", b"\xff"])
        return {b"content-type": wire.MEDIA_TYPE.encode()} | ({wire.REQUEST.encode(): name} if name else {})

    def _note(self, path: str, body: bytes, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        is_damaged = answer.status_code == 500 and b'"damaged"' in answer.content
        if answer.status_code >= 500 and not is_damaged:
            self.troubles.append(Trouble(path, body, answer.status_code, answer.text[:300]))

    def _damaged(self, data: bytes) -> bytes:
        at = self._dice.randrange(len(data))
        match self._dice.randrange(4):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + bytes([self._dice.randrange(256)]) + data[at + 1 :]
            case 2:
                return (
                    data[:at]
                    + self._dice.choice([b"\xff", b"\xed\xa0\x80", b"\xdd\xff\xff\xff\xff", b"\xc1"])
                    + data[at:]
                )
        return data.replace(b"a", b"\xff")

    def _value(self, kind: Any, usual: list[Any]) -> Any:
        """Of this type and nearly always one that makes sense."""
        if self._dice.randrange(100) < self._odds:
            return self._hostile(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._struct(kind)
        if typing.get_origin(kind) is list:
            (inner,) = typing.get_args(kind)
            return [self._value(inner, usual) for _ in range(self._dice.randrange(4))]
        return self._dice.choice(usual)

    def _struct(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        hints = typing.get_type_hints(kind)
        for field in msgspec.structs.fields(kind):
            if not field.required and self._dice.randrange(2):
                continue
            hint = hints[field.name]
            value[field.name] = self._value(hint, USUAL.get(field.name) or usual_of(hint))
        return value

    def _hostile(self, kind: Any) -> Any:
        """A value of the right type that a store may choke on, or of another type."""
        if self._dice.randrange(10) == 0:
            return self._dice.choice([None, True, {}, [], "text", 5, 5.5, b"x", {"a": {}}, [[[[]]]]])
        origin = typing.get_origin(kind)
        if origin in (typing.Union, types.UnionType):
            return self._hostile(self._dice.choice(typing.get_args(kind)))
        if origin in (tuple, list, frozenset) and typing.get_args(kind)[0] is str:
            return [self._dice.choice(TEXTS) for _ in range(self._dice.choice([1, 2, 1_001]))]
        if origin is not None and issubclass(origin, Mapping):
            return {self._dice.choice([*TEXTS, "t"]): self._dice.choice(INTEGERS)}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._struct(kind) | {self._dice.choice(TEXTS): self._dice.choice([1, "x", [[[]]]])}
        pools: dict[Any, list[Any]] = {str: TEXTS, int: INTEGERS, float: [*FLOATS, *INTEGERS], bytes: DATA}
        return self._dice.choice(pools.get(kind, TEXTS))
