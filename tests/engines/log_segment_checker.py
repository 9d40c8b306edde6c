"""Checks the cold segments that the tables of a log name, with a reader of its own (log_reader.py)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.engines.log_reader import Frame, Row, Tables, id_hash, read_segment

TASK_N, TASK_ID, TASK_LANE, TASK_STATUS, TASK_VERSION, TASK_CREATED, TASK_BATCH = 0, 1, 2, 3, 9, 10, 29  # of `tasks`
TASK_READY, TASK_RANK, TASK_ATTEMPT, TASK_FAILURES, TASK_COMPLETED = 4, 6, 7, 8, 13


def segment_troubles(state: Tables, segments: Mapping[str, Frame]) -> list[str]:
    """What does not hold between the tables and the segments that they name."""
    troubles, hashes, ids = list[str](), set[Row](), {row[TASK_ID] for row in state.get("tasks", {}).values()}
    numbers = {row[TASK_N] for row in state.get("tasks", {}).values()}
    for n, name, number, last, oldest, newest, *kind in state.get("segments", {}).values():
        if name not in segments:
            troubles.append(f"the segment {name} is missing")
            continue
        tasks = [*read_segment(segments[name].body)["tasks"].values()]
        counts = Counter((n, task[TASK_LANE], task[TASK_STATUS], task[TASK_BATCH] or "") for task in tasks)
        stored = {key: row[4] for key, row in state["cold_counts"].items() if key[0] == n}
        created = [task[TASK_CREATED] for task in tasks]
        found = len(tasks), max(task[TASK_N] for task in tasks), min(created), max(created), dict(counts)
        if found != (number, last, oldest, newest, stored):
            troubles.append(f"the segment {name} has {found} instead of {(number, last, oldest, newest, stored)}")
        if kind != (expected := _kind_of(tasks)):
            troubles.append(f"the segment {name} has {kind} instead of {expected}")
        if numbers & {task[TASK_N] for task in tasks}:
            troubles.append(f"numbers of the segment {name} are used elsewhere")
        numbers |= {task[TASK_N] for task in tasks}
        if both := ids & {task[TASK_ID] for task in tasks}:
            troubles.append(f"{both} are in the segment {name} and elsewhere")
        ids |= {task[TASK_ID] for task in tasks}
        hashes |= {(id_hash(task[TASK_ID]), n) for task in tasks}
    if hashes != {*state.get("cold_ids", {})}:
        troubles.append("the hashes of ids are not those of the segments")
    return troubles


def _kind_of(tasks: list[Row]) -> list[Any]:
    """The first end, lane and lowest rank that the row of a segment must have. Empty: these tasks may not be in one."""
    ready = {(task[TASK_STATUS], task[TASK_READY], task[TASK_ATTEMPT], task[TASK_FAILURES]) for task in tasks}
    lanes = {task[TASK_LANE] for task in tasks}
    if ready == {("pending", 1, 0, 0)} and len(lanes) == 1:
        return [None, *lanes, min(task[TASK_RANK] for task in tasks)]
    if {task[TASK_STATUS] for task in tasks} <= {"completed", "failed", "cancelled", "archived"}:
        return [min(task[TASK_COMPLETED] for task in tasks), None, None]
    return []
