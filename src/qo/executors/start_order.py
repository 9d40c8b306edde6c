"""The order in which waiting runs start: by rank, and not before tasks that the store may still hold."""

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from qo.executors.run import Run
from qo.model import Task, effective_rank


class StartOrder:
    """The waiting runs.

    A claim limits the number of tasks, in total and for some types, so the store may hold tasks that rank before some
    waiting runs. The barrier is the rank up to which the last claim took everything. `first` returns no run behind it.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._entries: list[tuple[float, int, Run]] = []  # a heap of rank, number and run
        self._barrier = float("inf")

    def add(self, runs: Iterable[Run], *, cut: Collection[str], is_full: bool, others: Iterable[Task]) -> None:
        """Add the runs of one claim. The arguments are those of `StartQueue.put`."""
        entries = []
        reached = float("-inf")
        for run in runs:
            reached = max(reached, _rank(run.task))
            entries.append((reached, next(self._numbers), run))
        taken = dict[str, float]()  # the last rank of the others, by type
        for task in others:
            taken[task.type] = max(_rank(task), taken.get(task.type, float("-inf")))
        self._keep_turns(entries)
        self._entries.extend(entries)
        heapq.heapify(self._entries)
        last = max([reached, *taken.values()]) if is_full else float("inf")
        self._barrier = min([last, *(max(self._last_rank(type), taken.get(type, float("-inf"))) for type in cut)])

    def _keep_turns(self, entries: Collection[tuple[float, int, Run]]) -> None:
        """Let runs whose groups have their turn start before later ones of their type, regardless of rank."""
        lowest: dict[str, float] = {}
        for rank, _, run in entries:
            if run.handler.options.fair_by is not None:
                lowest[run.task.type] = min(rank, lowest.get(run.task.type, rank))
        if lowest:
            self._entries = [
                (min(rank, lowest.get(run.task.type, rank)), number, run) for rank, number, run in self._entries
            ]

    def _last_rank(self, type: str) -> float:
        """The last rank of the waiting runs of this type.

        -inf if there are none, because the store may hold a task that ranks before any.
        """
        return max((rank for rank, _, run in self._entries if run.task.type == type), default=float("-inf"))

    def add_first(self, run: Run) -> None:
        """Add a run that starts before all others."""
        heapq.heappush(self._entries, (float("-inf"), next(self._numbers), run))

    def lift_barrier(self) -> None:
        self._barrier = float("inf")

    def first(self) -> Run | None:
        """The run that may start next; None if there is none or it is behind the barrier."""
        return self._entries[0][2] if self._entries and not self.is_barred() else None

    def is_barred(self) -> bool:
        """Whether the store may hold a task that goes before the first waiting run. Turns go before ranks."""
        if not self._entries:
            return False
        rank, _, run = self._entries[0]
        return rank > self._barrier and run.handler.options.fair_by is None

    def peek(self) -> Run | None:
        """The first waiting run. May be called while another thread changes the order."""
        try:
            return self._entries[0][2]
        except IndexError:
            return None

    def pop(self) -> None:
        """Remove the first run."""
        heapq.heappop(self._entries)

    def remove(self, runs: Iterable[Run]) -> None:
        gone = set(runs)
        self._entries = [entry for entry in self._entries if entry[2] not in gone]
        heapq.heapify(self._entries)

    def __iter__(self) -> Iterator[Run]:
        """In no particular order."""
        return (run for _, _, run in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _rank(task: Task) -> float:
    """The rank with which a claim returned a task."""
    return effective_rank(task.rank, task.due_at, task.updated_at)
