"""Tasks for the dashboard's tests, run by a real worker."""

import os
from pathlib import Path
from typing import Any

import qo
from tests.conditions import until

app = qo.App(os.environ.get("QO_URL", "sqlite:///qo.db"))


@app.task
async def greet(name: str = "Ada", **more: Any) -> dict[str, Any]:
    return {"greeting": f"Hello {name}", "length": len(name), "more": more}


@app.task(max_retries=0)
async def explode(reason: str = "no reason") -> None:
    raise ValueError(reason)


@app.task(max_retries=2, retry=qo.RetryPolicy(initial=0.05, max=0.1))
async def stumble(reason: str = "not yet") -> None:
    raise RuntimeError(reason)


@app.task(timeout=120)
async def hold(file: str) -> str:
    """Runs until the file is gone: a test decides when."""
    await until(lambda: not Path(file).exists())
    return "let go"


@app.task(timeout=120, limit=qo.Limit(concurrency=2, key="customer"))
async def charge(customer: str, file: str) -> str:
    """As `hold`, with a limit for each customer."""
    await until(lambda: not Path(file).exists())
    return customer
