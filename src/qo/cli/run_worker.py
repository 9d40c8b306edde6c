"""Starts the worker processes of `qo worker` under a supervisor."""

import asyncio
import logging
import sys
from pathlib import Path

from msgspec import Struct

from qo.cli.context import Invocation
from qo.cli.exit_codes import Exit
from qo.cli.output import print_error, print_json_error
from qo.errors import NewerFormat
from qo.monitor.settings import MonitorSettings
from qo.worker.fleet import Fleet, FleetSettings, changes, follow_parent, in_fleet
from qo.worker.process_exit import CANCELLED, OUTDATED
from qo.worker.settings import WorkerSettings
from qo.worker.worker_process import attach_table

log = logging.getLogger("qo.worker")


class Plan(Struct, frozen=True, kw_only=True):
    target: str
    url: str | None  # None: the app's own URL
    settings: WorkerSettings
    processes: int
    reload: bool
    monitor: MonitorSettings | None
    log: tuple[str, ...]
    metrics: tuple[str, int] | None = None  # host and port
    bucket: dict[str, str] = {}  # options of the bucket's layout, by their names in a URL

    @property
    def id(self) -> str:
        return str(self.settings.id)


def run(call: Invocation, plan: Plan) -> int:
    if in_fleet():
        return _run_supervised(call, plan)
    code = asyncio.run(_fleet(plan, call).run())
    if call.json:
        call.print_json({"worker_id": plan.id, "exit_code": code})
    return code


def _run_supervised(call: Invocation, plan: Plan) -> int:
    follow_parent(plan.settings.grace)
    # The supervisor does not need these modules, and importing them takes longer than its own start.
    from qo.cli.supervised_worker import work  # noqa: PLC0415
    from qo.worker import WorkerCancelled, WorkerStuck  # noqa: PLC0415

    try:
        return work(plan, attach_table())
    except WorkerStuck as error:
        (print_json_error if call.json else print_error)(str(error))
        return CANCELLED if isinstance(error, WorkerCancelled) else Exit.STUCK
    except NewerFormat as error:
        (print_json_error if call.json else print_error)(str(error))
        return OUTDATED


def _fleet(plan: Plan, call: Invocation) -> Fleet:
    settings = plan.settings
    if plan.processes > 1:
        log.info("%s: starting %d processes of %s", plan.id, plan.processes, plan.target)
    fleet = FleetSettings(
        size=plan.processes, id=plan.id, grace=settings.grace, lease=settings.lease, drain=settings.drain
    )
    return Fleet(
        lambda name: child_command(plan, name, number=fleet.names().index(name), json=call.json),
        fleet,
        changes=(lambda: changes(Path.cwd())) if plan.reload else None,
    )


def child_command(plan: Plan, name: str, *, number: int, json: bool) -> list[str]:
    """The command line of one process. It contains the whole plan, so that the process does not depend on defaults."""
    settings, monitor = plan.settings, plan.monitor
    words = [sys.executable, "-m", "qo", "worker", plan.target, "--id", name, "--processes", str(plan.processes)]
    words += ["--json"] if json else []
    words += ["--url", plan.url] if plan.url is not None else []
    for field in ("concurrency", "lease", "grace", "heartbeat"):
        words += [f"--{field}", str(getattr(settings, field))]
    words += ["--poll", str(settings.poll)] if settings.poll else []
    for field in ("queues", "types", "capabilities"):
        words += [f"--{field}", ",".join(getattr(settings, field))]
    for option, value in plan.bucket.items():
        words += [f"--{option.replace('_', '-')}", value]
    words += ["--drain"] if settings.drain else []
    if settings.fail_unknown_types is not None:
        words += ["--fail-unknown-types", str(settings.fail_unknown_types)]
    if plan.metrics is not None:
        host, port = plan.metrics
        words += ["--metrics-host", host, "--metrics-port", str(port + number)]
    if monitor is None:
        return [*words, "--no-monitor", *plan.log]
    for field in ("check_interval", "worker_health_threshold", "sweep_interval", "sweep_page_size"):
        words += [f"--{field.replace('_', '-')}", str(getattr(monitor, field))]
    for field in ("retention", "failed_retention"):
        if (given := getattr(monitor, field)) is not None:
            words += [f"--{field.replace('_', '-')}", str(given)]
    return [*words, "--expiry-grace", str(monitor.grace), *plan.log]
