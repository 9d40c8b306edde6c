"""qo application; QO_URL says where its tasks are."""

from typing import Any

from peerbench.base import hit

from qo import App

app = App()


@app.task
def noop(payload: dict[str, Any]) -> int:
    return hit(payload)
