"""Tasks that run until a file is there."""

import os
import time
from pathlib import Path

import qo

app = qo.App(os.environ["QO_URL"])


@app.task(timeout=120)
def hold(name: str, folder: str) -> str:
    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{name}\n")
    while not Path(folder, "go").exists():
        time.sleep(0.05)
    return name
