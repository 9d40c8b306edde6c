"""The "at a glance" and guide of Huey, in qo: a task, retries, a delay, a periodic task, a task that runs alone.

Run `qo worker huey_periodic:app` in one terminal and `python huey_periodic.py` in another. In Huey, calling a task
submits it. In qo, calling it calls the function, and `enqueue` submits it.
"""

from datetime import timedelta

import qo

app = qo.App("sqlite:///huey-periodic.db")  # SqliteHuey(filename="huey.db")


@app.task
def add_numbers(a: int, b: int) -> int:
    return a + b


# @huey.task(retries=2, retry_delay=1)
@app.task(max_retries=2, retry=qo.RetryPolicy(initial=1, multiplier=1, jitter=0))
def flaky(url: str) -> str:
    if qo.current_task().attempt == 1:
        raise ConnectionError(f"{url} does not answer")
    return f"fetched {url} with attempt {qo.current_task().attempt}"


# @huey.periodic_task(crontab(minute="0", hour="3")) and @huey.lock_task("backup")
@app.schedule("0 3 * * *", timezone="Europe/Berlin", overlap="skip")
@app.task
def nightly_backup() -> None:
    print("backing up", flush=True)


# crontab() has no seconds; an interval has.
@app.schedule(every=timedelta(seconds=1))
@app.task
def beep() -> None:
    print("beep", flush=True)


def main() -> None:
    added = add_numbers.enqueue(1, 2)  # add_numbers(1, 2)
    print("1 + 2 =", added.result(timeout=60))  # result(blocking=True, timeout=60)
    print("called directly:", add_numbers(1, 2))  # add_numbers.call_local(1, 2)

    later = add_numbers.using(delay=1).enqueue(2, 3)  # add_numbers.schedule((2, 3), delay=1)
    print("2 + 3 =", later.result(timeout=60))

    print(flaky.enqueue("https://example.com/").result(timeout=60))


if __name__ == "__main__":
    main()
