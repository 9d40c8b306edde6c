"""`manage.py qo_worker`: run the tasks of a backend in worker processes under a supervisor, as `qo worker` does."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from qo.cli import main

_OPTIONS = {  # the options of `qo worker` that are offered here
    "queues": "Names of queues, separated by commas; all if omitted.",
    "concurrency": "Tasks that one process runs at the same time.",
    "processes": "Worker processes.",
    "grace": "Time for running tasks to finish after SIGTERM, such as 30s.",
    "retention": "Time to keep finished tasks, such as 7d.",
    "log-level": "debug, info, warning or error.",
}
_FLAGS = {
    "drain": "Exit when no task is due.",
    "reload": "Restart when the code changes.",
    "log-json": "Log one JSON object per line.",
}


class Command(BaseCommand):  # type: ignore[misc]
    help = "Runs the tasks of a qo backend. Further options of `qo worker` can follow after --."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="The alias of the backend in settings.TASKS.")
        for name, text in _OPTIONS.items():
            parser.add_argument(f"--{name}", help=text)
        for name, text in _FLAGS.items():
            parser.add_argument(f"--{name}", action="store_true", help=text)
        parser.add_argument("more", nargs="*", help="Options of `qo worker`, after --.")

    def handle(self, **given: Any) -> None:
        arguments = ["worker", f"qo.django.worker_app:{given['backend']}"]
        for name in _OPTIONS:
            if (value := given[name.replace("-", "_")]) is not None:
                arguments += [f"--{name}", str(value)]
        arguments += [f"--{name}" for name in _FLAGS if given[name.replace("-", "_")]]
        main([*arguments, *given["more"]])
