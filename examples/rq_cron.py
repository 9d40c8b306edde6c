"""The quick-start of RQ, with its cron scheduler, in qo.

Run `python rq_cron.py` once, which adds the schedules, as `rq cron cron_config.py` reads them. Then run
`qo worker rq_cron:app` in one terminal and `python rq_cron.py https://example.com/` in another. RQ needs Redis and the
cron process besides the worker; here the worker is all.
"""

import sys
from datetime import timedelta
from urllib.request import urlopen

import qo

app = qo.App("sqlite:///rq-cron.db")  # Queue(connection=Redis())

# Retry(max=3, interval=[1, 2, 4])
patient = qo.RetryPolicy(initial=1, multiplier=2, jitter=0)


@app.task(max_retries=3, retry=patient)
def count_words_at_url(url: str) -> int:
    with urlopen(url, timeout=10) as page:
        return len(page.read().split())


@app.task(queue="maintenance")
def clean_up(folder: str, days: int = 30) -> str:
    return f"cleaned {folder} of files older than {days} days"


@app.task(queue="email")
def send_newsletter(edition: str, template: str) -> str:
    return f"sent the {edition} with {template}"


def add_schedules() -> None:
    """What `cron.register(...)` says in RQ's cron_config.py. Adding a schedule again changes nothing."""
    app.schedules.add("clean-up", every=timedelta(seconds=1), task=clean_up, kwargs={"folder": "/tmp/uploads"})
    app.schedules.add(
        "newsletter",
        cron="30 10 * * tue",
        timezone="Europe/Paris",
        task=send_newsletter,
        kwargs={"edition": "weekly digest", "template": "newsletter.html"},
    )
    for schedule in app.schedules.list():
        print("schedule", schedule.name, schedule.timing)


def main(url: str) -> None:
    job = count_words_at_url.enqueue(url)  # queue.enqueue(count_words_at_url, url)
    print(url, "has", job.result(timeout=60), "words")  # job.return_value()
    later = count_words_at_url.using(delay=timedelta(hours=1)).enqueue(url)  # queue.enqueue_in(timedelta(hours=1), ...)
    later.cancel()
    print("the second job is", later.status())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        add_schedules()
