"""`qo worker`: run tasks in one or more worker processes under a supervisor."""

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from qo.cli.context import DURATION, Invocation, Names, Shards, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.monitor_options import monitor_options, monitor_settings
from qo.cli.output import print_error, print_json_error
from qo.clock import duration_text
from qo.errors import NewerFormat, Refused
from qo.ids import new_worker_id
from qo.log_output import LEVELS, start_logging
from qo.model import check_name, check_type
from qo.monitor.settings import MonitorSettings
from qo.supervisor.supervisor import Supervisor, SupervisorSettings, changes
from qo.supervisor.worker_process import attach_table
from qo.worker.process_exit import CANCELLED, OUTDATED, REFUSED, follow_parent, is_supervised
from qo.worker.settings import WorkerSettings

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
    if is_supervised():
        return _run_supervised(call, plan)
    code = asyncio.run(_supervisor(plan, call).run())
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
    except Refused as error:
        (print_json_error if call.json else print_error)(str(error))
        return REFUSED


def _supervisor(plan: Plan, call: Invocation) -> Supervisor:
    settings = plan.settings
    if plan.processes > 1:
        log.info("%s: starting %d processes of %s", plan.id, plan.processes, plan.target)
    supervisor = SupervisorSettings(
        size=plan.processes, id=plan.id, grace=settings.grace, lease=settings.lease, drain=settings.drain
    )
    return Supervisor(
        lambda name: child_command(plan, name, number=supervisor.names().index(name), json=call.json),
        supervisor,
        changes=(lambda: changes(Path.cwd())) if plan.reload else None,
    )


def child_command(plan: Plan, name: str, *, number: int, json: bool) -> list[str]:
    """The command line of one process. It contains the whole plan, so that the process does not depend on defaults."""
    settings, monitor = plan.settings, plan.monitor
    words = [sys.executable, "-m", "qo", "worker", plan.target, "--id", name, "--processes", str(plan.processes)]
    words += ["--json"] if json else []
    words += ["--url", plan.url] if plan.url is not None else []
    words += ["--concurrency", str(settings.concurrency)]
    for field in ("lease", "grace", "heartbeat"):
        words += [f"--{field}", duration_text(getattr(settings, field))]
    words += ["--poll", duration_text(settings.poll)] if settings.poll else []
    for field in ("queues", "types", "capabilities"):
        words += [f"--{field}", ",".join(names)] if (names := getattr(settings, field)) else []
    for layout_option, value in plan.bucket.items():
        words += [f"--{layout_option.replace('_', '-')}", value]
    words += ["--drain"] if settings.drain else []
    if settings.fail_unknown_types is not None:
        words += ["--fail-unknown-types", duration_text(settings.fail_unknown_types)]
    if plan.metrics is not None:
        host, port = plan.metrics
        words += ["--metrics-host", host, "--metrics-port", str(port + number)]
    if monitor is None:
        return [*words, "--no-monitor", *plan.log]
    words += ["--sweep-page-size", str(monitor.sweep_page_size)]
    for field in ("check_interval", "worker_health_threshold", "sweep_interval", "retention", "failed_retention"):
        if (given := getattr(monitor, field)) is not None:
            words += [f"--{field.replace('_', '-')}", duration_text(given)]
    return [*words, "--expiry-grace", duration_text(monitor.grace), *plan.log]


_DEFAULTS = WorkerSettings()
_INDEX_MODES = ("index-only", "hybrid", "log-scan")

_EXAMPLES = examples(
    "qo worker myproject.tasks:app",
    "qo worker myproject.tasks:app --processes 4 --concurrency 20",
    "qo worker myproject.tasks --queues mail,default --reload       # for development",
    "qo worker myproject.tasks:app --drain                          # run all due tasks, then exit",
)


@click.command("worker", epilog=_EXAMPLES)
@common
@click.argument("target", metavar="MODULE[:APP]")
@option(
    "--id",
    "id_",
    metavar="NAME",
    var="QO_WORKER_ID",
    help="Id of this worker.  [default: generated from host and process]",
)
@option(
    "--concurrency",
    type=click.IntRange(1),
    default=_DEFAULTS.concurrency,
    var="QO_CONCURRENCY",
    help="Number of tasks that run concurrently in each process.",
)
@option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=1,
    var="QO_PROCESSES",
    help="Number of worker processes. A process that dies is restarted.",
)
@option(
    "--queues",
    type=Names("queues"),
    default=(),
    var="QO_QUEUES",
    help="Only these queues, separated by commas.  [default: all]",
)
@option(
    "--types",
    type=Names("types", check_type),
    default=(),
    var="QO_TYPES",
    help="Only these types, separated by commas.  [default: all types of the app]",
)
@option(
    "--capabilities",
    type=Names("capabilities"),
    default=(),
    var="QO_CAPABILITIES",
    help="Capabilities of this worker, for tasks that need them.",
)
@option(
    "--shards",
    type=Shards(),
    var="QO_SHARDS",
    help="Layout tasks: claim only tasks whose ids begin with these digits: 0, 0,8,f or 0-7.",
)
@option(
    "--index-mode",
    type=click.Choice(_INDEX_MODES),
    var="QO_INDEX_MODE",
    help="Buckets: use only the index, the index and regular full scans, or only scans.  [default: hybrid]",
)
@option(
    "--scan-interval",
    type=DURATION,
    var="QO_SCAN_INTERVAL",
    help="Buckets: interval between full scans.  [default: 1h]",
)
@option(
    "--lease",
    type=DURATION,
    default=_DEFAULTS.lease,
    var="QO_LEASE",
    help="Tasks of a worker that stops renewing their leases are retried after this time.",
)
@option(
    "--grace",
    type=DURATION,
    default=_DEFAULTS.grace,
    var="QO_GRACE",
    help="Time that running tasks have to finish at shutdown.",
)
@option(
    "--drain",
    is_flag=True,
    var="QO_DRAIN",
    help="Exit when no task is left to run. The worker waits for retries, however far ahead they are, but not for tasks"
    " scheduled for later. Tasks of types without a handler stay pending; the log names what is left.",
)
@option(
    "--fail-unknown-types",
    type=DURATION,
    metavar="AFTER",
    var="QO_FAIL_UNKNOWN_TYPES",
    help="Fail tasks of types that no worker or client has ever taken, once they have been due for this long."
    "  [default: they stay pending]",
)
@option("--no-monitor", is_flag=True, var="QO_NO_MONITOR", help="Do not run a monitor in the worker process.")
@option("--reload", is_flag=True, var="QO_RELOAD", help="Restart when a .py file below this directory changes.")
@option(
    "--poll",
    type=DURATION,
    var="QO_POLL",
    help="Longest pause between claims.  [default: 1s, up to 60s where claims are slow]",
)
@option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    var="QO_METRICS_PORT",
    help="Serve Prometheus metrics on this port; further processes use the following ports.",
)
@option("--metrics-host", default="127.0.0.1", var="QO_METRICS_HOST", help="Address for metrics.")
@option(
    "--heartbeat", type=DURATION, default=_DEFAULTS.heartbeat, var="QO_HEARTBEAT", help="Interval between heartbeats."
)
@option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    var="QO_LOG_LEVEL",
    help="Log level.",
)
@option("--log-json", is_flag=True, var="QO_LOG_JSON", help="Log one JSON object per line.")
@option(
    "--no-logging",
    is_flag=True,
    var="QO_NO_LOGGING",
    help="Leave the log of the worker process to the program. The default writes the root logger to stderr.",
)
@monitor_options
def command(call: Invocation, target: str, **given: Any) -> int:
    """Run the tasks of an app in supervised processes. APP is the name of a variable in MODULE; the default is `app`.

    The log goes to stderr. SIGTERM or Ctrl-C lets running tasks finish within --grace and releases the rest; a second
    signal releases all tasks immediately. --url overrides the URL in the code; QO_URL applies if the code has none.
    """
    plan = _plan(call, target, given)
    if not (given["no_logging"] and is_supervised()):  # the supervisor has no program that could configure its log
        start_logging(given["log_level"], as_json=given["log_json"] or call.json, root=is_supervised())
    return run(call, plan)


def _plan(call: Invocation, target: str, given: dict[str, Any]) -> Plan:
    for name in ("lease", "poll", "heartbeat", "scan_interval"):
        if given[name] is not None and given[name] <= 0:
            raise click.BadParameter("must be greater than 0.", param_hint=f"--{name.replace('_', '-')}")
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.").lstrip("-.") or "worker"
    settings = {name: given[name] for name in WorkerSettings.__struct_fields__ if name in given}
    settings["capture_logs"] = True
    settings["shards"] = tuple(sorted(given["shards"] or ()))
    return Plan(
        target=target,
        url=call.given_url,
        settings=WorkerSettings(**settings, id=check_name("id", given["id_"] or new_worker_id(host))),
        processes=given["processes"],
        reload=given["reload"],
        metrics=None if given["metrics_port"] is None else (given["metrics_host"], given["metrics_port"]),
        monitor=None if given["no_monitor"] else monitor_settings(given),
        bucket=_bucket(given),
        log=_log_options(call, given),
    )


def _log_options(call: Invocation, given: dict[str, Any]) -> tuple[str, ...]:
    words = ["--log-level", given["log_level"]]
    words += ["--log-json"] if given["log_json"] or call.json else []
    words += ["--no-logging"] if given["no_logging"] else []
    return tuple(words)


def _bucket(given: dict[str, Any]) -> dict[str, str]:
    """The options of the bucket's layout, by their names in a URL."""
    # As ranges: in the layout `log` a number is the number of shards.
    digits = ",".join(f"{digit}-{digit}" for digit in sorted(given["shards"] or ()))
    options = {"shards": digits, "index_mode": given["index_mode"] or ""}
    options["scan_interval"] = "" if given["scan_interval"] is None else duration_text(given["scan_interval"])
    return {name: value for name, value in options.items() if value}
