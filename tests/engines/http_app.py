"""An app for workers over HTTP: `qo worker --url http://... tests.engines.http_app:app`."""

import qo

app = qo.App("memory://")


@app.task
async def nothing() -> None: ...
