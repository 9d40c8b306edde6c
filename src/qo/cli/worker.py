"""`qo worker`: run tasks in one or more worker processes."""

import socket
from typing import Any

import click

from qo.cli import run_worker
from qo.cli.context import Invocation, common, examples, option
from qo.cli.logs import LEVELS, start_logging
from qo.cli.monitor_options import monitor_options, monitor_settings
from qo.cli.params import DURATION, Names, Shards
from qo.ids import new_worker_id
from qo.model import check_name, check_type
from qo.worker.settings import WorkerSettings

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
    help="Buckets: claim only tasks whose ids begin with these digits: 0, 0,8,f or 0-7.",
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
    help="Exit when no task is left. Tasks of types without a handler stay pending; the log names them.",
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
@monitor_options
def command(call: Invocation, target: str, **given: Any) -> int:
    """Run the tasks of an app in supervised processes. APP is the name of a variable in MODULE; the default is `app`.

    The log goes to stderr. SIGTERM or Ctrl-C lets running tasks finish within --grace and releases the rest; a second
    signal releases all tasks immediately. --url overrides the URL in the code; QO_URL applies if the code has none.
    """
    plan = _plan(call, target, given)
    start_logging(given["log_level"], as_json=given["log_json"] or call.json)
    return run_worker.run(call, plan)


def _plan(call: Invocation, target: str, given: dict[str, Any]) -> run_worker.Plan:
    for name in ("lease", "poll", "heartbeat", "scan_interval"):
        if given[name] is not None and given[name] <= 0:
            raise click.BadParameter("must be greater than 0.", param_hint=f"--{name.replace('_', '-')}")
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.").lstrip("-.") or "worker"
    settings = {name: given[name] for name in WorkerSettings.__struct_fields__ if name in given}
    settings["shards"] = tuple(sorted(given["shards"] or ()))
    return run_worker.Plan(
        target=target,
        url=call.given_url,
        settings=WorkerSettings(**settings, id=check_name("id", given["id_"] or new_worker_id(host))),
        processes=given["processes"],
        reload=given["reload"],
        metrics=None if given["metrics_port"] is None else (given["metrics_host"], given["metrics_port"]),
        monitor=None if given["no_monitor"] else monitor_settings(given),
        bucket=_bucket(given),
        log=("--log-level", given["log_level"], *(["--log-json"] if given["log_json"] or call.json else [])),
    )


def _bucket(given: dict[str, Any]) -> dict[str, str]:
    """The options of the bucket's layout, by their names in a URL."""
    options = {"shards": ",".join(sorted(given["shards"] or ())), "index_mode": given["index_mode"] or ""}
    options["scan_interval"] = "" if given["scan_interval"] is None else f"{given['scan_interval']:g}"
    return {name: value for name, value in options.items() if value}
