"""Why attempts failed and tasks ended, and what is read from stores that older builds wrote."""

import pytest
from msgspec.structs import replace

from qo.codec import decode_task, encode_task
from qo.model import (
    FailureKind,
    Status,
    Task,
    after_expiry,
    apply,
    archive,
    cancel,
    ended_because,
    fail,
    kind_of,
    lost_its_process,
    set_apart,
    with_kind,
)
from qo.model.life_cycle import NOW, sample


def failed(kind: FailureKind = FailureKind.TIMEOUT) -> Task:
    task = sample(Status.RUNNING)
    changed = apply(task, fail(task, "boom", kind=kind), NOW)
    assert changed is not None
    return changed


def archived(task: Task) -> Task:
    changed = apply(task, archive(task.id), NOW)
    assert changed is not None
    return changed


def test_why_a_task_has_no_result_stays_known_once_it_is_archived() -> None:
    cancelled = apply(sample(Status.PENDING), cancel(sample(Status.PENDING).id), NOW)
    assert cancelled is not None
    for task in (cancelled, archived(cancelled)):
        assert ended_because(task) is FailureKind.CANCELLED
    for task in (failed(), archived(failed())):
        assert ended_because(task) is FailureKind.TIMEOUT
    assert ended_because(sample(Status.FAILED)) is FailureKind.ERROR


def test_a_cancelled_task_with_an_earlier_error_is_not_taken_for_a_failed_one() -> None:
    """Its error and failures are those of an attempt before, from which the end cannot be told."""
    task = replace(failed(), status=Status.CANCELLED)
    assert archived(task).ended_as is Status.CANCELLED


@pytest.mark.parametrize(
    ("task", "ended_as"),
    [
        (replace(failed(), status=Status.ARCHIVED), Status.FAILED),
        (replace(sample(Status.ARCHIVED), result=b"1"), Status.COMPLETED),
        (sample(Status.ARCHIVED), Status.CANCELLED),
    ],
)
def test_how_a_task_ended_that_an_older_build_archived_is_guessed(task: Task, ended_as: Status) -> None:
    assert task.ended_as is ended_as


def test_errors_without_a_kind_are_read_as_errors_and_kinds_without_an_error_are_dropped() -> None:
    task = failed()
    assert with_kind(task) is task
    assert decode_task(encode_task(failed())) == failed()
    assert decode_task(encode_task(replace(failed(), failure_kind=None))).failure_kind is FailureKind.ERROR
    assert decode_task(encode_task(replace(failed(), error=None))).failure_kind is None
    assert kind_of(None, None) is None


def test_a_lost_process_is_recognised_in_an_error_without_a_kind() -> None:
    """Otherwise a task that killed its process before an upgrade would run beside others again."""
    task = sample(Status.RUNNING)
    for change in (set_apart(task, "its process died"), after_expiry(task, random=0.0)):
        old = apply(task, replace(change, failure_kind=None), NOW)
        assert old is not None and old.error is not None
        assert lost_its_process(decode_task(encode_task(replace(old, failure_kind=None))))
    named = replace(failed(FailureKind.ERROR), error="lost: the keys of the car")
    assert decode_task(encode_task(named)).failure_kind is FailureKind.ERROR


def test_a_kind_of_a_newer_build_is_read_as_an_error() -> None:
    later = encode_task(failed()).replace(b'"timeout"', b'"out_of_memory"')
    assert later != encode_task(failed())
    assert decode_task(later).failure_kind is FailureKind.ERROR
    with pytest.raises(ValueError, match="5 is not a valid FailureKind"):
        FailureKind(5)  # type: ignore[arg-type]
