"""`python -m qo.demo`: each step acts on a real store, waits for the effect, and prints what happened.

At the end the tasks must have ended as expected.
"""

import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qo.app import background_of
from qo.cli.output import duration
from qo.cli.rich_output import STYLES, data, status_text, table, took
from qo.clock import boot_clock
from qo.demo import tasks
from qo.demo.workers import DemoWorkers
from qo.errors import QoError
from qo.model import LEVELS, Filter, Status, Task, plural
from qo.safe_text import clean

_POLL_INTERVAL = 0.03  # seconds
_STEP_TIMEOUT = 30.0  # seconds; the whole demo takes about 20
_WIDTH = 80  # columns if stdout is not a terminal
_SCHEDULE = "clean-up"
T = TypeVar("T")
Tests = Callable[[Task], bool]
_NAMES = {level: name for name, level in LEVELS.items()}


def take_tour() -> int:
    console = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="qo-demo-"))
    tasks.app.url = f"sqlite:///{folder / 'qo.db'}"
    began = boot_clock()
    try:
        with DemoWorkers(folder, tasks.app.url) as workers:
            problems = Tour(console, folder, workers).run()
    except QoError as error:
        console.print(Text(f"the demo failed: {clean(str(error))} (see {folder}/workers.log)", style="bold red"))
        return 1
    finally:
        tasks.app.close()
    for line in problems:
        console.print(Text(f"unexpected: {line}", style="bold red"))
    if not problems:
        console.print(
            Text(f"\nEverything worked as expected, in {duration(boot_clock() - began)}.", style="bold green")
        )
    _next_commands(console, tasks.app.url)
    return 1 if problems else 0


class Tour:
    def __init__(self, console: Console, folder: Path, workers: DemoWorkers) -> None:
        self._console, self._folder, self._workers = console, folder, workers
        self._step = 0
        self._expected: list[ExpectedOutcome] = []

    def run(self) -> list[str]:
        """Run all steps; returns what was unexpected."""
        scheduled = self._submit()
        self._work()
        self._fire()
        self._report_progress()
        self._retry()
        self._replay()
        self._survive()
        self._wait_for(scheduled)
        return self._end()

    # --- the steps

    def _submit(self) -> str:
        self._title("Submit tasks of several types and priorities: a SQLite file, no broker")
        self._code('send_email.enqueue(to="ada@example.com", subject="Hi")      # high')
        self._code('make_report.using(delay=4).enqueue(month="January")         # low, in 4 s')
        self._code('app.schedules.add("clean-up", every=1, task=clean_up)       # each second')
        tasks.app.schedules.add(_SCHEDULE, every=1, task=tasks.clean_up)
        ids = [tasks.resize_image.enqueue(name=f"{name}.png", width=320).id for name in ("cat", "dog", "owl")]
        ids.append(tasks.make_report.enqueue(month="December").id)
        ids += [tasks.send_email.enqueue(to=f"{who}@example.com", subject="Hi").id for who in ("ada", "grace")]
        scheduled = tasks.make_report.using(delay=4).enqueue(month="January").id
        once = [tasks.resize_image.using(idempotency_key="logo").enqueue(name="logo.png", width=64) for _ in range(2)]
        ids.append(once[0].id)
        self._say(
            f"stored {plural(len(ids) + 1)}; logo.png was submitted twice with one idempotency key and is stored once"
        )
        self._expected += [ExpectedOutcome(task_id, failures=0) for task_id in ids]
        self._expected.append(ExpectedOutcome(scheduled, failures=0, on_time=True))
        self._check(once[0].id == once[1].id, "one idempotency key created two tasks")
        return scheduled

    def _work(self) -> None:
        self._title("Start a worker")
        self._code(self._workers.start("worker-a", "--queues", "default", "--concurrency", "1"))
        ids = [each.id for each in self._expected if not each.on_time]
        done = [self._until(task_id, "completed", _is(Status.COMPLETED)) for task_id in ids]
        done.sort(
            key=lambda task: (task.completed_at or 0.0, task.priority)
        )  # tasks of one commit end at the same time
        order = [task.priority for task in done]
        self._check(order == sorted(order), f"priorities ran in the order {order}")
        self._say(f"{plural(len(done))} completed, in this order: {', '.join(dict.fromkeys(t.type for t in done))}")
        self._say("the scheduled task waits for its time", Status.PENDING)

    def _fire(self) -> None:
        self._title("The schedule submits a task at each fire time, without another process")
        fired = self._wait("the schedule has not fired", self._fired)
        tasks.app.schedules.pause(_SCHEDULE)
        task = self._until(fired, "completed", _is(Status.COMPLETED))
        late = max(0.0, (task.started_at or 0.0) - (task.run_at or 0.0))
        self._say(f"its task started {duration(late)} after the fire time, and completed", Status.COMPLETED)
        self._say("the schedule is paused for the rest of the demo")

    def _fired(self) -> str | None:
        """The id of the first task that the schedule has submitted."""
        recent = reversed(tasks.app.schedules.get(_SCHEDULE).recent)
        return next((fire.task_id for fire in recent if fire.task_id is not None), None)

    def _report_progress(self) -> None:
        self._title("A handler reports its progress")
        self._code('qo.current_task().progress(row / rows, f"row {row} of {rows}")')
        submission = tasks.import_rows.enqueue(rows=500)
        shown: set[float] = set()
        task = self._until(submission.id, "reporting", lambda task: task.progress is not None)
        while not _ended(task):
            shown.add(task.progress or 0.0)
            self._say(f"{task.progress or 0:4.0%}  {task.progress_text}", Status.RUNNING)
            task = self._until(submission.id, "further", lambda task: _ended(task) or task.progress not in shown)
        self._say(f"completed: {submission.result(timeout=1)}", Status.COMPLETED)
        self._expected.append(ExpectedOutcome(submission.id, failures=0))

    def _retry(self) -> None:
        self._title("A task that fails is retried with growing delays")
        submission = tasks.fetch_rates.enqueue(currency="EUR")
        task = self._until(submission.id, "failing", lambda task: task.failures > 0)
        while not _ended(task):
            self._say(f"attempt {task.failures}: {_last_line(task)}", Status.FAILED)
            task = self._until(submission.id, "tried again", _moved(task))
        self._say(f"attempt {task.attempt}: {submission.result(timeout=1)}", Status.COMPLETED)
        self._expected.append(ExpectedOutcome(submission.id, failures=2))

    def _replay(self) -> None:
        self._title("A task without retries left is `failed`, and can be replayed")
        submission = tasks.charge_card.enqueue(amount=42)
        task = self._until(submission.id, "failed", _is(Status.FAILED))
        self._say(f"failed after {plural(task.failures, 'failure')}: {_last_line(task)}", Status.FAILED)
        self._say("the bank opens")
        (self._folder / "bank-is-open").touch()
        self._code(f"qo replay {submission.id}")
        tasks.app.replay(submission.id)
        self._until(submission.id, "completed", _is(Status.COMPLETED))
        self._say(f"completed: {submission.result(timeout=1)}", Status.COMPLETED)
        self._expected.append(ExpectedOutcome(submission.id, failures=0, attempt=3))

    def _survive(self) -> None:
        self._title("Kill a worker with SIGKILL while it runs a task: the task is not lost")
        submission = tasks.train_model.enqueue(seconds=1.5)
        self._code(self._workers.start("doomed", "--queues", "slow", "--no-monitor"))
        self._until(submission.id, "running", _is(Status.RUNNING))
        pid = self._wait("worker doomed has not registered", lambda: _pid("doomed"))
        self._workers.kill("doomed", pid)
        self._say(f"worker `doomed` runs the task; sent SIGKILL to process {pid} and its supervisor", Status.RUNNING)
        self._workers.start("rescuer", "--queues", "slow")
        task = self._until(submission.id, "given back", lambda task: task.failures > 0)
        self._say(f"a monitor detected it: {_last_line(task)}", Status.FAILED)
        self._until(submission.id, "completed", _is(Status.COMPLETED))
        self._say(f"worker `rescuer` ran the task again: {submission.result(timeout=1)}", Status.COMPLETED)
        self._expected.append(ExpectedOutcome(submission.id, failures=1, attempt=2, worker_id="rescuer"))

    def _wait_for(self, scheduled: str) -> None:
        task = self._until(scheduled, "completed", _is(Status.COMPLETED))
        late = (task.started_at or task.available_at) - task.available_at
        self._title("The scheduled task")
        self._say(f"started {duration(max(0.0, late))} after its scheduled time", Status.COMPLETED)

    def _end(self) -> list[str]:
        fired = [task.id for task in tasks.app.tasks(Filter(types=(tasks.clean_up.handler.type,)))]
        for task_id in fired:
            self._until(task_id, "completed", _is(Status.COMPLETED))
        self._expected += [ExpectedOutcome(task_id, failures=0, on_time=True) for task_id in fired]
        self._check(bool(fired), "the schedule has submitted no task")
        found = tasks.app.tasks(Filter(), limit=100)[::-1]
        self._console.print()
        self._console.print(show_tasks(found))
        return find_problems(self._expected, found)

    # --- output and waiting

    def _title(self, text: str) -> None:
        self._step += 1
        self._console.print()
        self._console.print(Text.assemble((f"{self._step}. ", "bold cyan"), (text, "bold")))

    def _code(self, text: str) -> None:
        self._console.print(Text(f"   {text}", style="dim"))

    def _say(self, text: str, status: Status | None = None) -> None:
        style = STYLES[status] if status else ""
        self._console.print(Text.assemble(("   ● ", style or "green"), clean(text)))

    def _until(self, task_id: str, what: str, test: Tests) -> Task:
        """Wait until the task passes the test."""

        def passing() -> Task | None:
            task = tasks.app.get(task_id)
            return task if task is not None and test(task) else None

        return self._wait(f"task {task_id} is not {what}", passing)

    def _wait(self, problem: str, condition: Callable[[], T | None]) -> T:
        """Wait until the condition returns something."""
        until = boot_clock() + _STEP_TIMEOUT
        while boot_clock() < until:
            found = condition()
            if found is not None:
                return found
            if not self._workers.are_alive():
                raise QoError("a worker ended unexpectedly")
            time.sleep(_POLL_INTERVAL)
        raise QoError(f"{problem} after {_STEP_TIMEOUT:g} s")

    def _check(self, is_met: bool, problem: str) -> None:  # noqa: FBT001 - the condition
        if not is_met:
            raise QoError(problem)


def _pid(worker_id: str) -> int | None:
    """The process id of a worker, if it has registered."""
    workers = background_of(tasks.app).call_client(lambda client: client.workers())
    return next((worker.pid for worker in workers if worker.worker_id == worker_id), None)


def _is(status: Status) -> Tests:
    return lambda task: task.status is status


def _moved(before: Task) -> Tests:
    return lambda task: task.failures > before.failures or _ended(task)


def _ended(task: Task) -> bool:
    return task.status not in (Status.PENDING, Status.RUNNING)


def _last_line(task: Task) -> str:
    """The error without its traceback."""
    return (task.error or "").strip().partition("\n")[0]


def _next_commands(console: Console, url: str) -> None:
    console.print(Text("\nThe store of the demo is kept. Try:", style="bold"))
    qo = _qo()
    for line in (
        f"export QO_URL={shlex.quote(url)}",
        f"{qo} list",
        f"{qo} stats",
        f"{qo} schedules",
        f"{qo} top --once",
        f'{qo} submit --type resize_image --input \'{{"name": "fox.png", "width": 64}}\'',
        f"{qo} worker qo.demo.tasks:app --drain",
        f"{qo} --help",
    ):
        console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)
    port = _free_port()
    console.print(Text("\nTo see it in a browser, run this and open the address:", style="bold"))
    for line in (f"{qo} serve --url {shlex.quote(url)} --port {port} --title demo", f"http://127.0.0.1:{port}/"):
        console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)


def _free_port() -> int:
    """The first free port from 8000, the default of `qo serve`, on."""
    for port in range(8000, 8100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    return 8000


def _qo() -> str:
    """The command qo: its name if it is in PATH, else its path."""
    beside = Path(sys.executable).with_name("qo")
    if shutil.which("qo"):
        return "qo"
    return shlex.quote(os.path.relpath(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m qo"


class ExpectedOutcome(Struct, frozen=True):
    """How a task must have ended. It must be completed."""

    id: str
    failures: int
    attempt: int | None = None  # None: one more than failures
    worker_id: str | None = None
    on_time: bool = False  # did not start before its scheduled time


def find_problems(outcomes: list[ExpectedOutcome], found: list[Task]) -> list[str]:
    """One line for each unexpected outcome."""
    by_id = {task.id: task for task in found}
    problems = [problem for expected in outcomes for problem in _problems(expected, by_id.get(expected.id))]
    unknown = by_id.keys() - {expected.id for expected in outcomes}
    return problems + [f"task {task_id} was not submitted by the demo" for task_id in sorted(unknown)]


def _problems(expected: ExpectedOutcome, task: Task | None) -> list[str]:
    if task is None:
        return [f"task {expected.id} is lost"]
    attempt = expected.failures + 1 if expected.attempt is None else expected.attempt
    checks = (
        (task.status is Status.COMPLETED, f"is {task.status}, not completed"),
        (task.failures == expected.failures, f"has {task.failures} failures, not {expected.failures}"),
        (task.attempt == attempt, f"took {task.attempt} attempts, not {attempt}"),
        (expected.worker_id in (None, task.worker_id), f"was run by {task.worker_id}, not {expected.worker_id}"),
        (not expected.on_time or (task.started_at or 0.0) >= task.available_at, "started before its scheduled time"),
    )
    return [f"{task.type} {task.id} {problem}" for is_met, problem in checks if not is_met]


def show_tasks(found: list[Task]) -> Table:
    numbers = ("attempts", "failures", "took")
    rows = table("type", "priority", "status", *numbers[:2], "worker", "took", right=numbers)
    for task in found:
        rows.add_row(
            data(task.type),
            Text(_NAMES.get(task.priority, str(task.priority))),
            status_text(task.status),
            str(task.attempt),
            Text(str(task.failures), style="red" if task.failures else "dim"),
            data(task.worker_id or "", "dim"),
            duration(took(task)),
        )
    return rows


if __name__ == "__main__":
    sys.exit(take_tour())
