"""The tasks a worker holds leases on."""

from collections import Counter

from qo.worker.run import Run


class Held:
    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self.by_type: Counter[str] = Counter()

    def add(self, run: Run) -> None:
        self._runs[run.task.id] = run
        self.by_type[run.task.type] += 1

    def remove(self, run: Run) -> None:
        if self._runs.pop(run.task.id, None) is not None:
            self.by_type[run.task.type] -= 1

    def runs(self) -> list[Run]:
        return list(self._runs.values())

    def ids(self) -> list[str]:
        return list(self._runs)

    def __len__(self) -> int:
        return len(self._runs)
