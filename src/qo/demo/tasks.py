"""The tasks of the demo: ordinary functions, some of which fail."""

import asyncio
import os
from pathlib import Path

import qo

FOLDER = "QO_DEMO_FOLDER"  # environment variable with the folder of the demo

app = qo.App()
quick = qo.RetryPolicy(initial=0.4, multiplier=2.0, jitter=0.0)


@app.task(priority="high")
async def send_email(to: str, subject: str) -> str:
    await asyncio.sleep(0.05)
    return f"sent {subject!r} to {to}"


@app.task
def resize_image(name: str, width: int) -> str:
    return f"{name} at {width}px"


@app.task(priority="low")
async def make_report(month: str) -> dict[str, str]:
    await asyncio.sleep(0.1)
    return {"month": month, "pages": "12"}


@app.task(max_retries=3, retry=quick)
def fetch_rates(currency: str) -> float:
    """Fails twice, then succeeds."""
    if qo.current_task().failures < 2:  # noqa: PLR2004 - twice
        raise ConnectionError("the exchange does not respond")
    return 1.09 if currency == "EUR" else 1.0


@app.task(max_retries=1, retry=quick)
def charge_card(amount: int) -> str:
    """Fails until the file `bank-is-open` exists."""
    if not Path(os.environ[FOLDER], "bank-is-open").exists():
        raise RuntimeError("the bank is closed")
    return f"charged {amount}"


@app.task(queue="slow", retry=quick)
async def train_model(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"trained by attempt {qo.current_task().attempt}"


@app.task
def clean_up() -> None:
    """Submitted by a schedule."""


@app.task
async def import_rows(rows: int) -> str:
    """Reports its progress. The worker stores the last report when it renews the lease."""
    for row in range(0, rows, 20):
        qo.current_task().progress(row / rows, f"row {row} of {rows}")
        await asyncio.sleep(0.1)
    return f"imported {rows} rows"
