"""The quick-start of Oban, in qo: queues, a unique job, snoozing, giving up, a crontab, and a test.

Run `qo worker oban_worker:app --queues events,default` in one terminal and `python oban_worker.py` in another. Oban is
for Elixir and keeps its jobs in Postgres, SQLite or MySQL. Here the store is a SQLite file; with
`postgresql://...` a task can be part of your own transaction, as `Oban.insert` in a `Multi` is.
"""

from datetime import timedelta

import qo

app = qo.App("sqlite:///oban-worker.db")


# use Oban.Worker, queue: :events, priority: 3, max_attempts: 3, unique: [period: 30, keys: [:id]]
@app.task(queue="events", priority=3, max_retries=2, unique=qo.Unique(by=("id",), within=30), concurrency=10)
def business(id: int, in_the: str = "business") -> str:
    if id < 0:
        raise qo.Fail(f"there is no record {id}")  # {:cancel, reason}
    if in_the == "queue" and qo.current_task().attempt == 1:
        raise qo.Retry("not yet", after=1)  # {:snooze, 1}; unlike Oban's, it uses up one of the retries
    return f"record {id} is in the {in_the}"  # {:ok, value}


# {Oban.Plugins.Cron, crontab: [{"@daily", MyApp.DailyReport, args: %{pages: 2}}]}
@app.schedule("@daily", kwargs={"pages": 2}, name="daily-report")
@app.schedule(
    every=timedelta(seconds=1), kwargs={"pages": 1}, name="report-every-second"
)  # Oban's shortest is a minute
@app.task
def report(pages: int) -> None:
    print("a report of", pages, "page" if pages == 1 else "pages", flush=True)


def test_business_is_submitted_once() -> None:
    """What `use Oban.Testing` is for: `assert_enqueued`, `perform_job` and `Oban.drain_queue`."""
    with app.test_mode() as tester:
        business.enqueue(1)
        business.enqueue(1)
        tester.assert_enqueued(business, id=1)
        [attempt] = tester.drain()
        assert attempt.result == "record 1 is in the business"


def main() -> None:
    first = business.enqueue(1)  # %{id: 1} |> MyApp.Business.new() |> Oban.insert()
    again = business.enqueue(1)
    print("submitted twice, stored once:", first.id == again.id)
    print(first.result(timeout=60))

    print(business.enqueue(2, in_the="queue").result(timeout=60))

    later = business.using(delay=1).enqueue(3)  # MyApp.Business.new(%{id: 3}, schedule_in: 1)
    print(later.result(timeout=60))

    try:
        business.enqueue(-1).result(timeout=60)
    except qo.TaskFailed as error:
        print("given up after", error.task.attempt, "attempt:", (error.error or "").splitlines()[0])


if __name__ == "__main__":
    main()
