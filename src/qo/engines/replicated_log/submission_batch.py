"""The submissions of one transaction, and the rows of their producers in the tables.

The row of a producer records which of its objects were added, so each is added once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from qo.damage import QUARANTINE, DamageNote
from qo.engines.replicated_log.submissions import Age
from qo.model import ANY, NewTask
from qo.sqlite_tables.table import SqliteTable

DAMAGED_SUBMISSIONS = f"{QUARANTINE}submissions/"
_MAX_READ_AGE = 3600.0  # seconds
_ROW_LIFETIME = 86_400.0  # seconds: far longer than a stream repeats a write
_MOVE = """
INSERT INTO submissions (producer, next, at) VALUES (?, ?, ?)
ON CONFLICT (producer) DO UPDATE SET next = excluded.next, at = excluded.at
"""
_REFRESH = "UPDATE submissions SET at = ? WHERE producer = ? AND at < ?"


class SubmissionNumber(NamedTuple):
    producer: str
    n: int

    @property
    def note(self) -> str:
        """The name of the note about a damaged object."""
        return f"{DAMAGED_SUBMISSIONS}{self.producer}/{self.n:08x}"


class WaitingSubmission(NamedTuple):
    """The content of an object; or, if it does not exist, the next number that may exist."""

    next: int
    age: Age  # of the reading
    tasks: Sequence[NewTask] = ()
    at: float = 0.0
    size: int = 0  # bytes before compression
    problem: str = ""  # why it cannot be added
    exists: bool = True

    @property
    def is_outdated(self) -> bool:
        """Whether the object may have been added and deleted, and its producer's row removed, since it was read."""
        return self.age.is_over(_MAX_READ_AGE)


@dataclass(slots=True, eq=False)
class SubmissionBatch:
    """The work of one transaction. It may run several times; the last run counts."""

    waiting: Mapping[SubmissionNumber, WaitingSubmission]  # sorted
    added: int = 0  # tasks
    moves: int = 0  # objects that were added or set aside
    consumed: list[SubmissionNumber] = field(default_factory=list)  # to delete after the commit
    kept: list[SubmissionNumber] = field(default_factory=list)  # damaged objects, which stay where they are
    gaps: dict[SubmissionNumber, int] = field(default_factory=dict)  # the number to add, and the first known after it

    def ingest(self, table: SqliteTable, now: float) -> None:
        """Add the tasks and move the producers' rows. This must be the first work of a transaction."""
        self.added, self.moves, self.consumed, self.kept, self.gaps = 0, 0, [], [], {}
        for number, found in self.waiting.items():
            if found.is_outdated:
                continue
            due = _next_number(table, number.producer)
            if number.n > due:
                self.gaps.setdefault(SubmissionNumber(number.producer, due), number.n)
            elif number.n == due:
                self._consume(table, number, found, now)
            elif found.exists:
                # Other processes may have read it too: the row must not be removed before their copies are outdated.
                table.db.execute(_REFRESH, (now, number.producer, now - _ROW_LIFETIME / 2))
                (self.kept if _has_note(table, number) else self.consumed).append(number)

    def _consume(self, table: SqliteTable, number: SubmissionNumber, found: WaitingSubmission, now: float) -> None:
        if found.problem:
            note = DamageNote(task_id="", problem=found.problem)
            table.write_note(number.note, msgspec.json.encode(note), ANY)
            if found.exists:
                self.kept.append(number)
        else:
            table.add(found.tasks, min(found.at, now))
            self.added += len(found.tasks)
            self.consumed.append(number)
        self.moves += 1
        table.db.execute(_MOVE, (number.producer, found.next, now))


def _next_number(table: SqliteTable, producer: str) -> int:
    found: int | None = table.db.execute("SELECT next FROM submissions WHERE producer = ?", (producer,)).get
    return 0 if found is None else found


def _has_note(table: SqliteTable, number: SubmissionNumber) -> bool:
    return table.db.execute("SELECT 1 FROM notes WHERE name = ?", (number.note,)).get is not None


def old_producers(table: SqliteTable, now: float) -> list[str]:
    """Producers of which nothing was added for a day. No stream repeats a write for that long."""
    rows = table.db.execute("SELECT producer FROM submissions WHERE at < ?", (now - _ROW_LIFETIME,))
    return [producer for (producer,) in rows]


def forget_producers(table: SqliteTable, producers: Sequence[str], now: float) -> None:
    """Remove the rows of old producers. The caller has found no object of theirs: without its row it would be added."""
    for producer in set(old_producers(table, now)).intersection(producers):
        table.db.execute("DELETE FROM submissions WHERE producer = ?", (producer,))
