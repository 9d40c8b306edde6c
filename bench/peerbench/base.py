"""What every peer shares: settings, the payload, the hit log and the adapter interface.

This module is imported by the controller *and* inside each peer's own virtual
environment, so it uses the standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

PAYLOAD_BYTES = 100
HIT = struct.Struct("<qqq")  # task index, enqueue-call start ns, handler start ns

Payload = dict[str, Any]


# --------------------------------------------------------------------------- settings
@dataclasses.dataclass(frozen=True)
class Settings:
    """Addresses and paths of one benchmark run, handed to child processes in BENCH_SETTINGS."""

    redis_url: str = ""
    pg_dsn: str = ""
    sqlite_path: str = ""
    s3_endpoint: str = ""
    s3_bucket: str = "bench"
    s3_key: str = "bench"
    s3_secret: str = "bench-secret"
    workdir: str = ""
    hits: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_env(self) -> dict[str, str]:
        return {"BENCH_SETTINGS": json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_env(cls) -> Settings:
        return cls(**json.loads(os.environ["BENCH_SETTINGS"]))

    @property
    def redis_host_port(self) -> tuple[str, int]:
        host, port = self.redis_url.split("//")[1].split("/")[0].split(":")
        return host, int(port)


# --------------------------------------------------------------------------- payload
_FIXED = len(json.dumps({"i": 0, "t": 0, "pad": ""}, separators=(",", ":"))) - 2


def make_payload(index: int) -> Payload:
    """A dict whose compact JSON form is PAYLOAD_BYTES long and carries the enqueue start time."""
    t = time.monotonic_ns()
    pad = PAYLOAD_BYTES - _FIXED - len(str(index)) - len(str(t))
    return {"i": index, "t": t, "pad": "x" * pad}


def dumps(payload: Payload) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


# --------------------------------------------------------------------------- hit log
_hits_fd: int | None = None


def hit(payload: Payload | bytes | str) -> int:
    """The no-op handler: append one record to the hit log (about 2 us, fork- and thread-safe).

    O_APPEND writes of 24 bytes are atomic on a local file, so any number of
    processes may share the log. The controller counts hits by the file's size.
    """
    now = time.monotonic_ns()
    global _hits_fd
    if _hits_fd is None:
        _hits_fd = os.open(Settings.from_env().hits, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    if not isinstance(payload, dict):
        payload = json.loads(payload)
    os.write(_hits_fd, HIT.pack(payload["i"], payload["t"], now))
    return 1


def read_hits(path: str | Path) -> list[tuple[int, int, int]]:
    data = Path(path).read_bytes()
    return list(HIT.iter_unpack(data[: len(data) // HIT.size * HIT.size]))


# --------------------------------------------------------------------------- adapter
class Adapter:
    """One peer in one configuration. Subclass, fill in the class variables, implement the methods.

    A subclass must not import the peer's library at module level: the controller
    loads every adapter in a plain interpreter. Import inside the methods.

    If `style` is "async", open/close/reset/enqueue/enqueue_bulk/remaining are coroutines;
    if it is "sync" they are plain functions.
    """

    name: ClassVar[str]
    env: ClassVar[str]  # name of the virtual environment the peer lives in
    backend: ClassVar[str]  # redis | postgres | sqlite | object
    style: ClassVar[str] = "async"
    package: ClassVar[str] = ""  # distribution whose version is reported
    concurrency: ClassVar[int] = 1  # in-process concurrency of the worker
    bulk: ClassVar[bool] = False  # does the peer have a bulk enqueue API?
    bulk_batch: ClassVar[int] = 1000
    producers: ClassVar[int] = 50
    fill_concurrency: ClassVar[int] = 1  # producers used to build a backlog when there is no bulk API
    fill_with_bulk: ClassVar[bool] = False  # enqueue_bulk exists for building a backlog only
    in_process: ClassVar[bool] = False  # the worker is a task inside the producer process
    config: ClassVar[str] = ""  # how the worker was run, for the report
    guarantee: ClassVar[str] = ""  # delivery and durability of this configuration
    depths: ClassVar[Sequence[int] | None] = None  # overrides --depths
    max_n: ClassVar[int | None] = None  # caps --n for peers that cannot take more
    light_rate: ClassVar[float | None] = None  # overrides --rate for peers that cannot sustain it
    counts_ops: ClassVar[bool] = True  # does the storage server see (and count) this peer's requests?
    options: ClassVar[dict[str, Any]] = {}  # handed to the app module through Settings.options

    def __init__(self, settings: Settings, env_bin: str = "") -> None:
        self.s = settings
        self.env_bin = env_bin
        self.concurrency_now = int(settings.options.get("concurrency", self.concurrency))

    # ---- storage -------------------------------------------------------------
    def reset(self) -> Any:
        """Create the schema. The controller has just wiped the storage."""

    def open(self) -> Any:
        """Connect the producer side."""

    def close(self) -> Any:
        """Disconnect the producer side."""

    # ---- producer ------------------------------------------------------------
    def enqueue(self, payload: Payload) -> Any:
        raise NotImplementedError

    def enqueue_bulk(self, payloads: list[Payload]) -> Any:
        raise NotImplementedError

    def thread_producer(self) -> Callable[[Payload], Any]:
        """For sync peers: the enqueue callable one producer thread uses."""
        return self.enqueue

    def remaining(self) -> Any:
        """Tasks queued or in progress; 0 means everything is done and acknowledged."""
        raise NotImplementedError

    # ---- worker --------------------------------------------------------------
    def worker_commands(self, procs: int) -> list[list[str]]:
        """Command lines that together make a worker of `procs` processes."""
        one = [sys.executable, "-m", "peerbench.worker", self.name]
        if self.env_bin:
            one[0] = f"{self.env_bin}/python"
        return [one] * procs

    def worker_env(self) -> dict[str, str]:
        return {}

    def run_worker(self) -> Any:
        """Runs inside the worker process when worker_commands is not overridden."""
        raise NotImplementedError


def chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
