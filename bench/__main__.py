#!/usr/bin/env python3
"""Side-by-side benchmark of task queues: python bench --peers redis,postgres,sqlite,object --n 10000

The controller (this file, standard library only) starts private storage servers, runs
every peer in its own virtual environment, and measures them all on the same work.
See README.md for the set-up and for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from adapters import ADAPTERS  # noqa: E402
from peerbench import procs, report, servers  # noqa: E402
from peerbench.base import HIT, Adapter, Settings, read_hits  # noqa: E402

PHASES = ("enqueue", "drain", "drain2", "idle", "latency", "depth")


class PhaseFailed(Exception):
    pass


# --------------------------------------------------------------------------- one peer in one phase
class Bench:
    """A peer on freshly wiped storage, with one producer process and any number of workers."""

    def __init__(self, run: Run, cls: type[Adapter], server: servers.Server) -> None:
        self.run, self.cls, self.server = run, cls, server
        server.wipe(cls.name)
        workdir = run.work / "peer"
        servers.shutil.rmtree(workdir, ignore_errors=True)
        workdir.mkdir(parents=True)
        options = {"concurrency": cls.concurrency} | cls.options | run.overrides
        self.settings = Settings(
            redis_url=getattr(server, "url", ""),
            pg_dsn=getattr(server, "dsn", ""),
            sqlite_path=str(getattr(server, "path", "")),
            s3_endpoint=getattr(server, "endpoint", ""),
            workdir=str(workdir),
            hits=str(workdir / "hits"),
            options=options,
        )
        self.hits = Path(self.settings.hits)
        self.hits.touch()
        self.env_bin = str(run.envs / cls.env / "bin")
        self.adapter = cls(self.settings, self.env_bin)
        self.environ = os.environ | self.settings.to_env() | self.adapter.worker_env() | {
            "PYTHONPATH": str(HERE), "PATH": f"{self.env_bin}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        self.log = open(run.logs / f"{cls.name}.log", "a")
        self.workers: list[subprocess.Popen] = []
        self.client = subprocess.Popen(
            [f"{self.env_bin}/python", "-m", "peerbench.client", cls.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True, env=self.environ, cwd=HERE, bufsize=1)  # fmt: skip
        try:
            self.call("reset")
            self.call("open")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_workers()
        self.client.stdin.close()
        procs.stop([self.client], grace=1)
        self.log.close()

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        self.client.stdin.write(json.dumps({"op": op} | args) + "\n")
        line = self.client.stdout.readline()
        answer = json.loads(line) if line else {"error": "the producer process died"}
        if "error" in answer:
            raise PhaseFailed(f"{op}: {answer['error']}")
        return answer

    # ---- workers -------------------------------------------------------------
    def start_workers(self, count: int) -> None:
        if self.cls.in_process:
            self.call("start_worker")
            return
        for command in self.adapter.worker_commands(count):
            self.workers.append(subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                                 env=self.environ, cwd=HERE))  # fmt: skip

    def stop_workers(self) -> None:
        procs.stop(self.workers, grace=3)
        self.workers = []

    def worker_pids(self) -> list[int]:
        return procs.tree([p.pid for p in self.workers] or [self.client.pid])

    def ops(self) -> float | None:
        """Requests the storage has served so far, if this peer's can be counted there."""
        return self.server.ops() if self.cls.counts_ops else None

    def hit_count(self) -> int:
        return self.hits.stat().st_size // HIT.size

    def wait_hits(self, count: int, seconds: float, poll: float = 0.005) -> bool:
        deadline = time.monotonic() + seconds
        while self.hit_count() < count:
            if time.monotonic() > deadline:
                return False
            if self.workers and all(p.poll() is not None for p in self.workers):
                raise PhaseFailed("the worker exited; see its log")
            time.sleep(poll)
        return True

    # ---- phases --------------------------------------------------------------
    def enqueue(self, op: str, n: int, cap: float) -> dict[str, Any]:
        """Time submits. Fails if the store does not have them: an adapter for another version may submit nothing."""
        result = self.call(op, n=n, cap=cap)
        stored = self.call("remaining")["remaining"]
        if stored < result["done"]:
            raise PhaseFailed(f"{result['done']} tasks were submitted, and the store has {stored}")
        return result

    def drain(self, n: int, count: int, cap: float) -> dict[str, Any]:
        """Queue n tasks, start the workers, time from the first handler to the last acknowledgement."""
        fill = self.call("fill", n=n)
        self.server.settle()
        ops = self.ops()
        self.start_workers(count)
        if not self.wait_hits(1, 60, 0.001):
            raise PhaseFailed("no task ran within 60 s")
        worker_cpu, server_cpu, seen = procs.cpu_seconds(self.worker_pids()), self.server.cpu(), self.hit_count()
        started = read_hits(self.hits)[0][2]
        finished = self.wait_hits(n, cap)
        deadline = started / 1e9 + cap
        while True:
            left, end = self.call("remaining")["remaining"], time.monotonic_ns()
            if left == 0 or end / 1e9 > deadline:
                break
            time.sleep(0.005)
        worker_cpu = procs.cpu_seconds(self.worker_pids()) - worker_cpu
        server_cpu, ops_after = self.server.cpu() - server_cpu, self.ops()
        rss, pss = procs.memory_mb(self.worker_pids())
        hits = read_hits(self.hits)
        starts = sorted(h[2] for h in hits)
        span = max(end - starts[0], 1) / 1e9
        measured = max(len(hits) - seen, len(hits) // 2, 1)
        fifth = max(len(starts) // 5, 2)
        return {
            "n": n, "ran": len(hits), "duplicates": len(hits) - len({h[0] for h in hits}), "finished": finished and left == 0,
            "acked": n - left, "seconds": span, "rate": (n - left) / span, "ack_tail_s": (end - starts[-1]) / 1e9,
            "us_head": (starts[fifth - 1] - starts[0]) / (fifth - 1) / 1e3,
            "us_tail": (starts[-1] - starts[-fifth]) / (fifth - 1) / 1e3,
            "worker_cpu_us": worker_cpu / measured * 1e6, "server_cpu_us": server_cpu / measured * 1e6,
            "ops_per_task": None if ops is None else (ops_after - ops) / len(hits),
            "rss_mb": rss, "pss_mb": pss, "processes": len(self.worker_pids()), "fill_rate": fill["rate"],
        }  # fmt: skip

    def idle(self, seconds: float) -> dict[str, Any]:
        """Start one worker on an empty queue, run a few tasks, then count what it does when idle."""
        self.start_workers(1)
        self.call("enq_one", n=5, cap=30, base=10_000_000)
        if not self.wait_hits(5, 60):
            raise PhaseFailed("the worker did not take the warm-up tasks")
        time.sleep(3)
        pids = self.worker_pids()
        ops, cpu, io, start = self.ops(), procs.cpu_seconds(pids), procs.io_calls(pids), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - start
        after = self.ops()
        probe = 1 if isinstance(self.server, servers.Redis) else 0  # our own INFO
        return {
            "ops_per_s": None if ops is None else max(after - ops - probe, 0) / elapsed,
            "io_calls_per_s": (procs.io_calls(pids) - io) / elapsed,
            "cpu_percent": (procs.cpu_seconds(pids) - cpu) / elapsed * 100,
            "rss_mb": procs.memory_mb(pids)[0],
        }

    def latency(self, rate: float, seconds: float) -> dict[str, Any]:
        """Light load on the worker that idle() started: enqueue-call start to handler start."""
        before = self.hit_count()
        answer = self.call("steady", rate=rate, seconds=seconds, base=20_000_000)
        sent = answer["sent"]
        self.wait_hits(before + sent - answer["failed"], 30)
        delays = sorted((h[2] - h[1]) / 1e6 for h in read_hits(self.hits) if h[0] >= 20_000_000)
        if not delays:
            raise PhaseFailed("no task ran")
        return {"sent": sent, "failed": answer["failed"], "ran": len(delays), "ms": [round(d, 3) for d in delays],
                "p50_ms": quantile(delays, 0.5), "p99_ms": quantile(delays, 0.99)}  # fmt: skip


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


# --------------------------------------------------------------------------- the whole run
class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work, self.envs = Path(args.work).resolve(), Path(args.envs).resolve()
        self.out = Path(args.out).resolve()
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.overrides: dict[str, Any] = {"concurrency": args.concurrency} if args.concurrency else {}
        self.overrides |= {k: json.loads(v) for k, v in (pair.split("=", 1) for pair in args.set)}
        base = args.port_base
        self.servers: dict[str, servers.Server] = {
            "redis": servers.Redis(args.redis_server, base + 379, self.work / "redis"),
            "redis-aof": servers.Redis(args.redis_server, base + 380, self.work / "redis-aof", "everysec"),
            "redis-always": servers.Redis(args.redis_server, base + 381, self.work / "redis-always", "always"),
            "postgres": servers.Postgres(args.pg_bin, base + 432, self.work / "pg", args.pg_user),
            "sqlite": servers.Sqlite(self.work / "sqlite"),
            "object": servers.SeaweedS3(args.weed or str(self.envs / "raw/bin/weed"), base + 333, self.work / "weed",
                                        "bench", "bench-secret", "bench"),
        }  # fmt: skip
        self.plan = self._plan(args.peers.split(","))
        self.started: list[servers.Server] = []
        self.results: list[dict[str, Any]] = []
        self.versions: dict[str, str] = {}
        self.raw: dict[str, Any] = {}

    def _plan(self, wanted: list[str]) -> list[tuple[str, type[Adapter], str, tuple[str, ...]]]:
        """(label, adapter, server, phases) in the order given; a word is a backend or an adapter's name."""
        plan, phases = [], tuple(self.args.phases.split(","))
        for word in wanted:
            for cls in ADAPTERS.values():
                if word in (cls.backend, cls.name):
                    plan.append((cls.name, cls, cls.backend, phases))
                plan += [
                    (f"{cls.name}+{mode}", cls, f"redis-{mode}", phases)
                    for mode in ("aof", "always")
                    if word == f"{cls.name}+{mode}" or (word == f"redis-{mode}" and cls.backend == "redis")
                ]
        if not plan:
            raise SystemExit(f"unknown peers: {','.join(wanted)}; known: {', '.join(ADAPTERS)}")
        return plan

    def execute(self) -> None:
        args = self.args
        try:
            for key in dict.fromkeys(server for _, _, server, _ in self.plan):
                self.servers[key].start()
                self.started.append(self.servers[key])
            for rep in range(args.reps):
                if args.raw:
                    for key in dict.fromkeys(server for _, _, server, _ in self.plan):
                        self.raw_limits(rep, key)
                for label, cls, server, phases in self.plan:
                    for phase in phases:
                        self.one(rep, label, cls, self.servers[server], phase)
                        self.save()
        finally:
            for server in self.started:
                server.stop()
            self.save()

    def raw_limits(self, rep: int, key: str) -> None:
        """The storage's own limits, from the `raw` environment."""
        server, workdir = self.servers[key], self.work / "peer"
        servers.shutil.rmtree(workdir, ignore_errors=True)
        workdir.mkdir(parents=True)
        server.wipe("raw")
        settings = Settings(redis_url=getattr(server, "url", ""), pg_dsn=getattr(server, "dsn", ""), workdir=str(workdir),
                            s3_endpoint=getattr(server, "endpoint", ""), s3_bucket="raw")  # fmt: skip
        if key == "object":
            server.make_bucket("raw")
        done = subprocess.run([str(self.envs / "raw/bin/python"), "-m", "peerbench.rawlimits", key], cwd=HERE, text=True,
                              env=os.environ | settings.to_env(), capture_output=True)  # fmt: skip
        if done.returncode:
            print(f"raw limits of {key} failed:\n{done.stderr[-2000:]}", flush=True)
            return
        for name, value in json.loads(done.stdout).items():
            self.raw.setdefault(key, {}).setdefault(name, []).append(value)
        print(f"[{rep}] raw {key}: {json.loads(done.stdout)}", flush=True)
        self.save()

    def one(self, rep: int, label: str, cls: type[Adapter], server: servers.Server, phase: str) -> None:
        args = self.args
        n = min(args.n, cls.max_n or args.n)
        jobs: list[tuple[str, Any]] = []
        if phase == "enqueue":
            jobs = [("enq_one", lambda b: b.enqueue("enq_one", n, args.enqueue_cap)),
                    ("enq_conc", lambda b: b.enqueue("enq_conc", n, args.enqueue_cap))]  # fmt: skip
            if cls.bulk:
                jobs.append(("enq_bulk", lambda b: b.enqueue("enq_bulk", n, args.enqueue_cap)))
        elif phase == "drain":
            jobs = [("drain1", lambda b: b.drain(n, 1, args.drain_cap))]
        elif phase == "drain2" and not cls.in_process:
            jobs = [("drain2", lambda b: b.drain(n, 2, args.drain_cap))]
        elif phase == "idle":
            want_latency = "latency" in args.phases
            jobs = [("idle", lambda b: {"idle": b.idle(args.idle_seconds)} | (
                {"latency": b.latency(cls.light_rate or args.rate, args.rate_seconds)} if want_latency else {}))]  # fmt: skip
        elif phase == "depth":
            for depth in cls.depths or [int(d) for d in args.depths.split(",")]:
                if (depth == n and "drain" in args.phases.split(",")) or (depth > args.depth_once and rep):
                    continue  # the drain phase is this very measurement; the deepest runs once
                jobs.append((f"depth{depth}", lambda b, d=depth: b.drain(d, 1, args.depth_cap)))
        for key, job in jobs:
            record = self.measure(rep, label, cls, server, key, job)
            if record["foreign_cores"] > args.noisy_cores and record["took_s"] < args.retry_below:
                again = self.measure(rep, label, cls, server, key, job)
                record = min(record, again, key=lambda r: ("error" in r, r["foreign_cores"]))
            self.results.append(record)

    def measure(
        self, rep: int, label: str, cls: type[Adapter], server: servers.Server, key: str, job: Any
    ) -> dict[str, Any]:
        """One phase on fresh storage, once the machine is quiet."""
        procs.wait_quiet(self.args.quiet_cores, self.args.quiet_wait)
        calib, began = procs.calibrate(), time.monotonic()
        busy, own = procs.machine_busy_seconds(), procs.cpu_seconds(procs.tree([os.getpid()]))
        record: dict[str, Any] = {"peer": label, "rep": rep, "key": key, "calib_ms": round(calib, 2),
                                  "load": os.getloadavg()[0]}  # fmt: skip
        try:
            with Bench(self, cls, server) as bench:
                if label not in self.versions:
                    self.versions[label] = bench.call("version")["version"]
                record |= job(bench)
        except (PhaseFailed, OSError, RuntimeError, ValueError, BrokenPipeError) as exc:
            record["error"] = str(exc)[:300]
        took = time.monotonic() - began
        busy, own = procs.machine_busy_seconds() - busy, procs.cpu_seconds(procs.tree([os.getpid()])) - own
        record |= {"took_s": round(took, 1), "foreign_cores": round(max(busy - own, 0) / took, 2)}
        shown = {k: (round(v, 1) if isinstance(v, float) else v) for k, v in record.items()
                 if k in ("rate", "us_head", "us_tail", "ran", "finished", "duplicates", "worker_cpu_us", "error", "errors", "took_s", "calib_ms", "foreign_cores")}  # fmt: skip
        if "idle" in record:
            shown |= {"idle_ops": record["idle"]["ops_per_s"], "p50": record.get("latency", {}).get("p50_ms"),
                      "p99": record.get("latency", {}).get("p99_ms")}  # fmt: skip
        print(f"[{rep}] {label:22} {key:10} {shown}", flush=True)
        return record

    def save(self) -> None:
        document = {
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
            "args": {k: v for k, v in vars(self.args).items() if k in ("n", "reps", "rate", "rate_seconds", "depths", "drain_cap", "depth_cap")},
            "versions": self.versions,
            "adapters": {label: {"backend": server, "config": cls.config, "guarantee": cls.guarantee, "style": cls.style}
                         for label, cls, server, _ in self.plan},
            "results": self.results,
            "raw": self.raw,
        }  # fmt: skip
        path = self.out / f"{self.args.tag}.json"
        path.write_text(json.dumps(document, indent=1))
        (self.out / f"{self.args.tag}.md").write_text(report.markdown([document]))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument(
        "--peers",
        default="redis,postgres,sqlite,object",
        help="backends (also redis-aof, redis-always) or adapter names",
    )
    p.add_argument("--n", type=int, default=10_000, help="tasks per enqueue and drain measurement")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--raw", action="store_true", help="also measure the storage's own limits")
    p.add_argument("--phases", default=",".join(PHASES))
    p.add_argument("--depths", default="1000,10000,100000")
    p.add_argument(
        "--depth-once", type=int, default=10_000, help="backlogs deeper than this run in the first repetition only"
    )
    p.add_argument("--enqueue-cap", type=float, default=10, help="seconds after which an enqueue measurement stops")
    p.add_argument("--drain-cap", type=float, default=30, help="seconds after which a drain is cut off")
    p.add_argument("--depth-cap", type=float, default=20)
    p.add_argument("--rate", type=float, default=20)
    p.add_argument("--rate-seconds", type=float, default=10)
    p.add_argument("--idle-seconds", type=float, default=10)
    p.add_argument("--concurrency", type=int, help="override the worker's concurrency (for tuning)")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=JSON", help="override an adapter option (for tuning)"
    )
    p.add_argument(
        "--quiet-cores", type=float, default=0.3, help="wait before a measurement until others use less than this"
    )
    p.add_argument("--quiet-wait", type=float, default=15, help="but at most this many seconds")
    p.add_argument(
        "--noisy-cores", type=float, default=0.5, help="repeat a measurement once when others used more than this"
    )
    p.add_argument("--retry-below", type=float, default=60, help="but only if it took less than this many seconds")
    p.add_argument("--envs", default="envs", help="folder of the peers' virtual environments")
    p.add_argument("--work", default="work", help="scratch folder for servers and logs")
    p.add_argument("--out", default="results")
    p.add_argument("--tag", default="peers", help="name of the result files")
    p.add_argument("--port-base", type=int, default=22_000)
    p.add_argument("--redis-server", default="redis-server")
    p.add_argument("--pg-bin", default="/usr/lib/postgresql/15/bin")
    p.add_argument("--pg-user", default="postgres", help="account that runs Postgres when started as root")
    p.add_argument("--weed", default="", help="SeaweedFS binary; default is the one in the raw environment")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that children are stopped
    Run(p.parse_args()).execute()


if __name__ == "__main__":
    main()
