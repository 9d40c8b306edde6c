"""HeartbeatManager: with any object that has `heartbeat`, and never for longer than was asked for."""

from datetime import timedelta
from typing import Any

import pytest

import qo
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.testing import ManualClock
from tests.engines.fast_time import pass_time, run


class Sheet:
    """A queue of somebody else's."""

    def __init__(self, error: Exception | None = None) -> None:
        self.beats: list[str] = []
        self.error = error

    async def heartbeat(self, job_id: str) -> None:
        self.beats.append(job_id)
        if self.error is not None:
            raise self.error


def test_any_object_with_a_heartbeat_is_kept_alive() -> None:
    async def beating() -> None:
        sheet = Sheet()
        async with qo.HeartbeatManager(sheet, "job-1", interval=timedelta(seconds=30)) as heartbeat:
            await pass_time(100)
        assert sheet.beats == ["job-1"] * 3 and not heartbeat.lost

    run(beating())


def test_a_heartbeat_need_not_be_a_coroutine() -> None:
    class Plain:
        beats = 0

        def heartbeat(self, _: str) -> None:
            self.beats += 1

    async def beating() -> None:
        plain = Plain()
        async with qo.HeartbeatManager(plain, "job-1", interval=30) as heartbeat:
            await pass_time(100)
        assert plain.beats == 3 and not heartbeat.lost

    run(beating())


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), timedelta(0), "30"])
def test_an_interval_without_a_pause_is_refused(interval: Any) -> None:
    with pytest.raises(qo.InvalidTask, match="interval"):
        qo.HeartbeatManager(Sheet(), "job-1", interval=interval)


def test_an_object_without_a_heartbeat_is_refused() -> None:
    with pytest.raises(qo.InvalidSetting, match=r"object.* has no heartbeat\(task\)"):
        qo.HeartbeatManager(object(), "job-1")  # type: ignore[arg-type]


def test_an_error_of_another_kind_ends_the_beats_and_not_the_work(caplog: pytest.LogCaptureFixture) -> None:
    async def beating() -> None:
        sheet = Sheet(KeyError("job-1"))
        async with qo.HeartbeatManager(sheet, "job-1", interval=30) as heartbeat:
            await pass_time(100)
        assert sheet.beats == ["job-1"] and heartbeat.lost

    run(beating())
    assert "the lease of task job-1 is no longer renewed: 'job-1'" in caplog.text


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("lease", [45.0, 300.0, 4000.0])
def test_a_heartbeat_renews_by_the_requested_length(lease: float, by_id: bool) -> None:
    async def beating() -> None:
        clock = ManualClock()
        async with Client(MemoryEngine(clock), clock=clock) as client:
            await client.enqueue("t", queue="jobs")
            consumer = await client.consumer("jobs")
            (task,) = await consumer.dequeue(lease=lease)
            async with qo.HeartbeatManager(consumer, task.id if by_id else task, interval=20) as heartbeat:
                for _ in range(10):
                    await pass_time(16)
                    clock.advance(16)
                    renewed = await client.get(task.id)
                    assert renewed is not None and renewed.lease_expires_at is not None
                    assert renewed.lease_expires_at <= clock.now + lease
            assert not heartbeat.lost
            await client.ack(task)

    run(beating())


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/qo.db"])
async def test_a_heartbeat_without_a_lease_keeps_its_length(url: str, tmp_path: object) -> None:
    async with qo.connect(url.format(tmp_path)) as client:
        await client.enqueue("t")
        [task] = await client.dequeue(lease=77)
        await client.heartbeat(task.id)
        renewed = await client.get(task.id)
        assert renewed is not None and renewed.lease_expires_at is not None
        assert renewed.lease_expires_at - renewed.updated_at == pytest.approx(77, abs=0.01)


async def test_errors_name_the_task_and_their_cause() -> None:
    nobody = "00000000-0000-8000-8000-000000000000"
    clock = ManualClock()
    async with Client(MemoryEngine(clock), clock=clock) as client:
        with pytest.raises(qo.TaskNotFound) as missing:
            await client.ack(nobody)
        with pytest.raises(qo.TaskNotFound) as unknown:
            await client.replay(nobody)
        assert missing.value.task_id == unknown.value.task_id == nobody
        submitted = await client.enqueue("t", max_retries=0)
        with pytest.raises(qo.WrongStatus) as wrong:
            await client.replay(submitted.id)
        with pytest.raises(qo.ResultTimeout) as slow:
            await submitted.result(timeout=0)
        [task] = await client.dequeue()
        await client.nack(task, "no luck")
        with pytest.raises(qo.TaskFailed) as failed:
            await submitted.result()
        with pytest.raises(qo.LeaseLost) as lost:
            await client.ack(task)
        assert {error.value.task_id for error in (wrong, slow, failed, lost)} == {submitted.id}
        assert lost.value.cause is None


def test_a_storage_error_has_its_cause() -> None:
    broken = OSError("disk on fire")
    with pytest.raises(qo.QoError) as caught:
        raise qo.StorageError("the store is unreachable") from broken
    assert caught.value.cause is broken and caught.value.task_id is None
