"""Markdown tables from result documents: python -m peerbench.report a.json [b.json ...] > report.md

Several documents (for instance one per backend) are shown as one set of tables.
Each cell is the median of the repetitions with (min-max) behind it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def number(value: float) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def cell(values: Iterable[float | None], spread: bool = True) -> str:
    numbers = [v for v in values if v is not None]
    if not numbers:
        return "-"
    middle = number(statistics.median(numbers))
    low, high = number(min(numbers)), number(max(numbers))
    return f"{middle} ({low}-{high})" if spread and len(numbers) > 1 and low != high else middle


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "|".join("---" if k == 0 else "---:" for k in range(len(head))) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows if any(c != "-" for c in row[1:])]
    return "\n".join(lines) + "\n"


class Results:
    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.records: list[Record] = [r for d in documents for r in d["results"]]
        self.adapters: dict[str, dict[str, str]] = {k: v for d in documents for k, v in d["adapters"].items()}
        self.versions: dict[str, str] = {k: v for d in documents for k, v in d["versions"].items()}
        self.raw: dict[str, dict[str, list[Any]]] = {k: v for d in documents for k, v in d.get("raw", {}).items()}
        self.args = documents[0]["args"]
        self.peers = list(dict.fromkeys(r["peer"] for r in self.records))

    def get(self, peer: str, key: str) -> list[Record]:
        return [r for r in self.records if r["peer"] == peer and r["key"] == key and "error" not in r]

    def depth(self, peer: str, depth: int) -> list[Record]:
        """A drain phase with n == depth stands for the depth measurement it would repeat."""
        return self.get(peer, f"depth{depth}") or [x for x in self.get(peer, "drain1") if x["n"] == depth]

    def values(self, peer: str, key: str, pick: Callable[[Record], Any]) -> list[Any]:
        return [pick(r) for r in self.get(peer, key)]

    def name(self, peer: str) -> str:
        return f"{peer} {self.versions.get(peer, '')}".strip()


def enqueue_table(r: Results) -> str:
    rows = []
    for peer in r.peers:
        conc = r.get(peer, "enq_conc")
        failed = sum(x.get("errors", 0) for x in conc)
        rows.append([
            r.name(peer),
            cell(r.values(peer, "enq_one", lambda x: x["rate"])),
            cell([x["rate"] for x in conc]) + (f" {failed} producers failed" if failed else ""),
            cell(r.values(peer, "enq_bulk", lambda x: x["rate"])),
            cell(r.values(peer, "enq_one", lambda x: x["cpu_us"]), False),
            cell(r.values(peer, "enq_bulk", lambda x: x["cpu_us"]), False),
        ])  # fmt: skip
    return table(
        [
            "peer",
            "one by one /s",
            "concurrent producers /s",
            "bulk API /s",
            "producer CPU us (one)",
            "producer CPU us (bulk)",
        ],
        rows,
    )


def drain_table(r: Results) -> str:
    rows = []
    for peer in r.peers:
        one, two = r.get(peer, "drain1"), r.get(peer, "drain2")
        cut = "" if all(x["finished"] for x in one) else " cut"
        duplicates = sum(x["duplicates"] for x in one + two)
        rows.append([
            r.name(peer), cell([x["rate"] for x in one]) + cut, cell([x["rate"] for x in two]),
            cell([x["worker_cpu_us"] for x in one], False), cell([x["server_cpu_us"] for x in one], False),
            cell([x["ops_per_task"] for x in one], False), cell([x["rss_mb"] for x in one], False),
            cell([x["processes"] for x in one], False), str(duplicates) if one or two else "-",
        ])  # fmt: skip
    return table(["peer", "1 process /s", "2 processes /s", "worker CPU us/task", "server CPU us/task", "storage ops/task",
                  "RSS MB", "OS processes", "duplicate runs"], rows)  # fmt: skip


def idle_table(r: Results) -> str:
    rows = []
    for peer in r.peers:
        records = list(r.get(peer, "idle"))
        loads = [x["latency"] for x in records if "latency" in x]
        pooled = sorted(ms for x in loads for ms in x["ms"])
        sent, ran = sum(x["sent"] for x in loads), len(pooled)
        rows.append([
            r.name(peer), cell([x["p50_ms"] for x in loads]), cell([x["p99_ms"] for x in loads]),
            number(pooled[-1]) if pooled else "-", f"{ran}/{sent}" if sent else "-",
            cell([x["idle"]["ops_per_s"] for x in records], False),
            cell([x["idle"]["io_calls_per_s"] for x in records], False),
            cell([x["idle"]["cpu_percent"] for x in records], False), cell([x["idle"]["rss_mb"] for x in records], False),
        ])  # fmt: skip
    return table(
        [
            "peer",
            "p50 ms",
            "p99 ms",
            "max ms",
            "ran/sent",
            "idle storage ops/s",
            "idle I/O syscalls/s",
            "idle CPU %",
            "idle RSS MB",
        ],
        rows,
    )


def depth_table(r: Results) -> str:
    depths = sorted({x["n"] for x in r.records if x["key"].startswith(("depth", "drain1")) and "n" in x})
    rows = []
    for peer in r.peers:
        micro = {d: [1e6 / x["rate"] for x in r.depth(peer, d) if x["rate"]] for d in depths}
        known = [d for d in depths if micro[d]]
        row = [r.name(peer)]
        for d in depths:
            cut = any(not x["finished"] for x in r.depth(peer, d))
            row.append(cell(micro[d]) + (" cut" if cut and micro[d] else ""))
        if len(known) > 1:
            row.append(f"{statistics.median(micro[known[-1]]) / statistics.median(micro[known[0]]):.1f}x")
        else:
            row.append("-")
        rows.append(row)
    return table(["peer", *(f"{d:,} us/task".replace(",", " ") for d in depths), "deepest / shallowest"], rows)


def config_table(r: Results) -> str:
    rows = [[r.name(p), r.adapters[p]["backend"], r.adapters[p]["config"], r.adapters[p]["guarantee"]] for p in r.peers]
    return table(["peer", "storage", "measured configuration", "guarantee"], rows)


def raw_table(r: Results) -> str:
    rows = []
    for key, figures in r.raw.items():
        for name, values in figures.items():
            shown = values[0] if isinstance(values[0], str) else cell(values)
            rows.append([f"{key}: {name}", shown])
    return table(["raw limit", "per second (or as named)"], rows)


def failures(r: Results) -> str:
    lines = sorted({f"- {x['peer']} {x['key']}: {x['error']}" for x in r.records if "error" in x})
    return "\n".join(lines) + "\n" if lines else "none\n"


def noise(r: Results) -> str:
    foreign = sorted(x.get("foreign_cores", 0) for x in r.records)
    calib = sorted(x.get("calib_ms", 0) for x in r.records)
    if not foreign:
        return ""
    at = lambda xs, q: xs[min(len(xs) - 1, int(q * len(xs)))]  # noqa: E731
    return (f"{len(r.records)} measurements. Cores used by other programs: median {at(foreign, 0.5):.2f}, p90 {at(foreign, 0.9):.2f}, "
            f"max {foreign[-1]:.2f}. Fixed Python work: median {at(calib, 0.5):.1f} ms, best {calib[0]:.1f}, p90 {at(calib, 0.9):.1f}.\n")  # fmt: skip


def markdown(documents: list[dict[str, Any]]) -> str:
    r = Results(documents)
    parts = [
        ("A. Enqueue (tasks per second)", enqueue_table(r)),
        (f"B and F. Process {r.args['n']} queued no-op tasks (tasks per second, acknowledged)", drain_table(r)),
        (f"C and D. Latency at {r.args['rate']:g} tasks/s, and an idle worker", idle_table(r)),
        ("E. Time per task by backlog (one worker process)", depth_table(r)),
        ("Raw limits of the storages", raw_table(r)),
        ("What was measured", config_table(r)),
        ("Failures", failures(r)),
        ("Noise", noise(r)),
    ]
    return "\n".join(
        f"### {title}\n\n{body}" for title, body in parts if body.count("\n") > 2 or title in ("Failures", "Noise")
    )


if __name__ == "__main__":
    print(markdown([json.loads(Path(p).read_text()) for p in sys.argv[1:]]))
