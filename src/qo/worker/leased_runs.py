"""The runs of a worker, from the claim until the outcome is stored and the handler has ended."""

from collections import Counter

from qo.worker.run import Run
from qo.worker.run_table import RunTable


class LeasedRuns:
    """Holds at most one run of a task, because two would renew, settle and remove each other."""

    def __init__(self, table: RunTable | None = None) -> None:
        self._table = table
        self._runs: dict[str, Run] = {}
        self.by_type: Counter[str] = Counter()

    def claim(self, lease_id: str) -> None:
        """Record the lease of a claim that is about to be sent, so that its tasks are found if the process dies."""
        if self._table is not None:
            self._table.claim(lease_id)

    def add(self, run: Run) -> None:
        if (before := self._runs.get(run.task.id)) is not None:
            self.remove(before)
        self._runs[run.task.id] = run
        self.by_type[run.task.type] += 1

    def get(self, task_id: str) -> Run | None:
        return self._runs.get(task_id)

    def remove(self, run: Run) -> None:
        if self._runs.get(run.task.id) is run:
            del self._runs[run.task.id]
            self.by_type[run.task.type] -= 1
        if self._table is not None:
            self._table.clear(run)

    def runs(self) -> list[Run]:
        return list(self._runs.values())

    def leased(self) -> list[Run]:
        """The runs whose leases this worker renews."""
        return [run for run in self._runs.values() if not run.settled]

    def __len__(self) -> int:
        return len(self._runs)
