"""A server that is killed while a token acts: what it acknowledged is in the audit trail, once."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx

import qo
from qo.audit import AuditRecord, compact_audit, read_audit
from qo.clock import system_clock
from qo.engines import open_engine
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.conditions import delay, until
from tests.servers.plain_http import NO_CERTIFICATES

ACTIONS = 20  # acknowledged before each kill, at least
CALLERS = 4
SOURCE = Path(qo.__file__).parents[1]


class Acting:
    """Submits tasks and cancels them, and pauses queues. Each action has a target of its own, so it is found again."""

    def __init__(self, secret: str) -> None:
        self._headers = {"authorization": f"Bearer {secret}"}
        self._numbers = itertools.count()
        self.submitted: set[str] = set()
        self.sent: set[tuple[str, str]] = set()
        self.acknowledged: set[tuple[str, str]] = set()

    async def until_killed(self, url: str) -> None:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(
                base_url=url, headers=self._headers, timeout=60.0, verify=NO_CERTIFICATES
            ) as http:
                while True:
                    answer = await http.post("/api/v1/tasks", json={"task_type": "t"})
                    task_id = answer.raise_for_status().json()["task_id"]
                    self.submitted.add(task_id)
                    await self._act(http, ("cancel", task_id), "DELETE", f"/api/v1/tasks/{task_id}")
                    queue = f"q{next(self._numbers)}"
                    await self._act(http, ("pause", f"queues {queue}"), "POST", "/api/v1/controls/pause", queue=queue)

    async def _act(self, http: httpx.AsyncClient, action: tuple[str, str], method: str, path: str, **body: str) -> None:
        self.sent.add(action)
        (await http.request(method, path, json=body or None)).raise_for_status()
        self.acknowledged.add(action)


async def test_what_a_killed_server_acknowledged_is_in_the_trail_once(tmp_path: Path, scale: int, seed: int) -> None:
    dice, url = random.Random(seed), f"sqlite:///{tmp_path / 'qo.db'}"
    engine = open_engine(url)
    await engine.open()
    try:
        made = await create_token(engine, "ops", [Scope.OPERATE, Scope.SUBMIT], now=system_clock())
        acting = Acting(made.secret)
        for _ in range(scale):
            await _act_and_kill(url, acting, dice)
        for _ in range(2):  # as it was left, and merged
            page = await read_audit(engine, now=system_clock(), limit=100_000)
            times = Counter(map(_action_of, page.records))
            assert not acting.acknowledged - times.keys(), "acknowledged and not recorded"
            assert not times.keys() - acting.sent
            assert set(times.values()) == {1}
            assert {record.who for record in page.records} == {"ops"}
            await compact_audit(engine, system_clock())
        assert all(await engine.get(sorted(acting.submitted)))
    finally:
        await engine.close()


async def _act_and_kill(url: str, acting: Acting, dice: random.Random) -> None:
    enough = len(acting.acknowledged) + ACTIONS
    with _serving(url) as (server, base):
        callers = [asyncio.create_task(acting.until_killed(base)) for _ in range(CALLERS)]
        await until(lambda: len(acting.acknowledged) >= enough or any(caller.done() for caller in callers))
        await delay(dice.uniform(0.0, 0.02))  # any moment of a request
        server.kill()
        await asyncio.gather(*callers)


@contextlib.contextmanager
def _serving(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QO_")}
    words = [sys.executable, "-m", "qo", "serve", "--url", url, "--port", "0", "--log-json"]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env=environment | {"PYTHONPATH": str(SOURCE)}
    ) as server:
        assert server.stderr is not None
        try:
            port = next(json.loads(line)["port"] for line in server.stderr if '"port"' in line)
            yield server, f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _action_of(record: AuditRecord) -> tuple[str, str]:
    return record.action, record.task_ids[0] if record.task_ids else record.target
