"""The tour: each step does something real, waits until the store shows it, and says what happened."""

import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from qo.app import background_of
from qo.cli.output import clean, duration, plural
from qo.cli.rich_output import STYLES
from qo.clock import boot_clock
from qo.demo import tasks
from qo.demo.summary import Promise, keep_promises, show_tasks
from qo.demo.workers import DemoWorkers
from qo.errors import QoError
from qo.model import Filter, Status, Task

_POLL_INTERVAL = 0.03  # seconds
PATIENCE = 30.0  # seconds for any one thing to happen; all of them together take about fifteen
WIDTH = 80  # columns where there is no terminal to ask

Tests = Callable[[Task], bool]


def take_tour() -> int:
    console = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="qo-demo-"))
    tasks.app.url = f"sqlite:///{folder / 'qo.db'}"
    began = boot_clock()
    try:
        with DemoWorkers(folder, tasks.app.url) as workers:
            broken = Tour(console, folder, workers).run()
    except QoError as error:
        console.print(Text(f"the demo failed: {clean(str(error))} (see {folder}/workers.log)", style="bold red"))
        return 1
    finally:
        tasks.app.close()
    for line in broken:
        console.print(Text(f"not as promised: {line}", style="bold red"))
    if not broken:
        console.print(Text(f"\nAll as promised, in {duration(boot_clock() - began)}.", style="bold green"))
    _next_commands(console, tasks.app.url)
    return 1 if broken else 0


class Tour:
    def __init__(self, console: Console, folder: Path, workers: DemoWorkers) -> None:
        self._console, self._folder, self._workers = console, folder, workers
        self._step = 0
        self._promises: list[Promise] = []

    def run(self) -> list[str]:
        """Every step; what was not as promised."""
        scheduled = self._submit()
        self._work()
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
        ids = [tasks.resize_image.enqueue(name=f"{name}.png", width=320).id for name in ("cat", "dog", "owl")]
        ids.append(tasks.make_report.enqueue(month="December").id)
        ids += [tasks.send_email.enqueue(to=f"{who}@example.com", subject="Hi").id for who in ("ada", "grace")]
        scheduled = tasks.make_report.using(delay=4).enqueue(month="January").id
        once = [tasks.resize_image.using(idempotency_key="logo").enqueue(name="logo.png", width=64) for _ in range(2)]
        ids.append(once[0].id)
        self._say(f"{plural(len(ids) + 1)} are stored; logo.png, submitted twice under one key, is one of them")
        self._promises += [Promise(task_id, failures=0) for task_id in ids]
        self._promises.append(Promise(scheduled, failures=0, on_time=True))
        self._check(once[0].id == once[1].id, "one idempotency key made two tasks")
        return scheduled

    def _work(self) -> None:
        self._title("Start a worker")
        self._code(self._workers.start("worker-a", "--queues", "default", "--concurrency", "1"))
        ids = [promise.id for promise in self._promises if not promise.on_time]
        done = [self._until(task_id, "completed", _is(Status.COMPLETED)) for task_id in ids]
        done.sort(key=lambda task: (task.completed_at or 0.0, task.priority))  # one commit may end several: one moment
        order = [task.priority for task in done]
        self._check(order == sorted(order), f"priorities ran in the order {order}")
        self._say(f"{plural(len(done))} completed, in this order: {', '.join(dict.fromkeys(t.type for t in done))}")
        self._say("the scheduled one waits for its time", Status.PENDING)

    def _retry(self) -> None:
        self._title("A task that fails is tried again, a little later each time")
        submission = tasks.fetch_rates.enqueue(currency="EUR")
        task = self._until(submission.id, "failing", lambda task: task.failures > 0)
        while not _ended(task):
            self._say(f"try {task.failures}: {_last_line(task)}", Status.FAILED)
            task = self._until(submission.id, "tried again", _moved(task))
        self._say(f"try {task.attempt}: {submission.result(timeout=1)}", Status.COMPLETED)
        self._promises.append(Promise(submission.id, failures=2))

    def _replay(self) -> None:
        self._title("A task out of retries ends in `failed`, and can be replayed")
        submission = tasks.charge_card.enqueue(amount=42)
        task = self._until(submission.id, "failed", _is(Status.FAILED))
        self._say(f"failed after {plural(task.failures, 'failure')}: {_last_line(task)}", Status.FAILED)
        self._say("the bank opens")
        (self._folder / "bank-is-open").touch()
        self._code(f"qo replay {submission.id}")
        tasks.app.replay(submission.id)
        self._until(submission.id, "completed", _is(Status.COMPLETED))
        self._say(f"completed: {submission.result(timeout=1)}", Status.COMPLETED)
        self._promises.append(Promise(submission.id, failures=0, attempt=3))

    def _survive(self) -> None:
        self._title("kill -9 a worker in the middle of a task; the task is not lost")
        submission = tasks.train_model.enqueue(seconds=1.5)
        self._code(self._workers.start("doomed", "--queues", "slow", "--no-monitor"))
        self._until(submission.id, "running", _is(Status.RUNNING))
        pid = _pid("doomed")
        self._workers.kill("doomed", pid)
        self._say(f"worker `doomed` runs it; kill -9 {pid}, and its supervisor", Status.RUNNING)
        self._workers.start("rescuer", "--queues", "slow")
        task = self._until(submission.id, "given back", lambda task: task.failures > 0)
        self._say(f"a monitor noticed: {_last_line(task)}", Status.FAILED)
        self._until(submission.id, "completed", _is(Status.COMPLETED))
        self._say(f"worker `rescuer` ran it again: {submission.result(timeout=1)}", Status.COMPLETED)
        self._promises.append(Promise(submission.id, failures=1, attempt=2, worker_id="rescuer"))

    def _wait_for(self, scheduled: str) -> None:
        task = self._until(scheduled, "completed", _is(Status.COMPLETED))
        late = (task.started_at or task.available_at) - task.available_at
        self._title("And the scheduled one")
        self._say(f"ran {duration(max(0.0, late))} after its time", Status.COMPLETED)

    def _end(self) -> list[str]:
        found = tasks.app.tasks(Filter(), limit=100)[::-1]
        self._console.print()
        self._console.print(show_tasks(found))
        return keep_promises(self._promises, found)

    # --- what steps are made of

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
        """The task once it passes the test."""
        return _until(task_id, what, test, self._workers.living)

    def _check(self, kept: bool, problem: str) -> None:  # noqa: FBT001 - what is checked
        if not kept:
            raise QoError(problem)


def _until(task_id: str, what: str, test: Tests, living: Callable[[], bool]) -> Task:
    until = boot_clock() + PATIENCE
    while boot_clock() < until:
        task = tasks.app.get(task_id)
        if task is not None and test(task):
            return task
        if not living():
            raise QoError("a worker ended unexpectedly")
        time.sleep(_POLL_INTERVAL)
    raise QoError(f"task {task_id} is not {what} after {PATIENCE:g} s")


def _pid(worker_id: str) -> int:
    """The process of a worker, once it has made itself known."""
    until = boot_clock() + PATIENCE
    while boot_clock() < until:
        for worker in background_of(tasks.app).call_client(lambda client: client.workers()):
            if worker.worker_id == worker_id:
                return worker.pid
        time.sleep(_POLL_INTERVAL)
    raise QoError(f"worker {worker_id} has not made itself known after {PATIENCE:g} s")


def _is(status: Status) -> Tests:
    return lambda task: task.status is status


def _moved(before: Task) -> Tests:
    return lambda task: task.failures > before.failures or _ended(task)


def _ended(task: Task) -> bool:
    return task.status not in (Status.PENDING, Status.RUNNING)


def _last_line(task: Task) -> str:
    """The error without its trace."""
    return (task.error or "").strip().partition("\n")[0]


def _next_commands(console: Console, url: str) -> None:
    console.print(Text("\nLook around; the demo's queue is kept:", style="bold"))
    qo = _qo()
    for line in (
        f"export QO_URL={shlex.quote(url)}",
        f"{qo} list",
        f"{qo} stats",
        f"{qo} top --once",
        f'{qo} submit --type resize_image --input \'{{"name": "fox.png", "width": 64}}\'',
        f"{qo} worker qo.demo.tasks:app --drain",
        f"{qo} --help",
    ):
        console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)
    port = _free_port()
    console.print(Text("\nSee it in a browser: start this, then open the address.", style="bold"))
    for line in (f"{qo} serve --url {shlex.quote(url)} --port {port} --title demo", f"http://127.0.0.1:{port}/"):
        console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)


def _free_port() -> int:
    """8000 like `qo serve` itself, or the next that nobody listens at."""
    for port in range(8000, 8100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    return 8000


def _qo() -> str:
    """How to call qo from here: by name if the shell finds it, else by path."""
    beside = Path(sys.executable).with_name("qo")
    if shutil.which("qo"):
        return "qo"
    return shlex.quote(os.path.relpath(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m qo"
