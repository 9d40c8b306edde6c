"""The first steps of Celery, with the periodic tasks of its beat, in qo.

Run `qo worker celery_beat:app` in one terminal and `python celery_beat.py` in another. There is no broker, no result
backend and no beat process: the SQLite file holds the tasks and their results, and every worker fires schedules.
"""

from datetime import timedelta

import qo

app = qo.App("sqlite:///celery-beat.db")  # Celery("tasks", broker=..., backend=...)


@app.task
def add(x: int, y: int) -> int:
    return x + y


# beat_schedule = {"say-hello": {"task": "tasks.say", "schedule": 1.0, "args": ("hello",)}}
@app.schedule(every=timedelta(seconds=1), name="say-hello", kwargs={"what": "hello"})
# beat_schedule = {"monday": {..., "schedule": crontab(hour=7, minute=30, day_of_week=1), "args": ("happy Monday",)}}
@app.schedule("30 7 * * mon", timezone="Europe/London", name="monday", kwargs={"what": "happy Monday"})
@app.task
def say(what: str) -> None:
    print(what, flush=True)


def main() -> None:
    result = add.enqueue(4, 4)  # add.delay(4, 4)
    print("4 + 4 =", result.result(timeout=60))  # result.get(timeout=60)

    later = add.using(delay=1).enqueue(2, 2)  # add.apply_async((2, 2), countdown=1)
    print("the second one is", later.status())  # AsyncResult.state
    print("2 + 2 =", later.result(timeout=60))


if __name__ == "__main__":
    main()
