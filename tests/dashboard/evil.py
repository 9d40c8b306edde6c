"""Scripts, and a store full of them: written past the checks, as a bad program with its hands on the store could."""

import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.clock import system_clock
from qo.engines.sqlite import SqliteEngine
from qo.model import ANY, ClaimRequest, GraphNode, NewTask, WorkflowGraph, complete, fail
from qo.schedules.decision import created_note
from qo.schedules.schedule import NO_ID, Fire, make_schedule
from qo.workflows import GRAPHS, encode_graph

HIT = "top.hits=(top.hits||0)+1"
SCRIPTS = [
    f"<script>{HIT}</script>",
    f"<img src=x onerror='{HIT}'>",
    f"<svg onload='{HIT}'>",
    f"<svg><script>{HIT}</script></svg>",
    f'"><script>{HIT}</script>',
    f"'><img src=x onerror={HIT}>",
    f"</title><script>{HIT}</script>",
    f"</textarea><img src=x onerror={HIT}>",
    f"<iframe srcdoc='<script>{HIT}</script>'></iframe>",
    f"<iframe src='javascript:{HIT}'></iframe>",
    f"<a href='javascript:{HIT}'>click</a>",
    f"javascript:{HIT}",
    f"<details open ontoggle='{HIT}'>",
    f"<body onload='{HIT}'>",
    f"<input autofocus onfocus='{HIT}'>",
    f"<math><mi xlink:href='javascript:{HIT}'>x</mi></math>",
    f"<style>*{{background:url(javascript:{HIT})}}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<script src=//evil.example/x.js></script>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    f"<form action=javascript:{HIT}><button>go</button></form>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f"`;{HIT}//",
    "&lt;script&gt;\u2028\u202e<b>bold</b>",
]


async def fill(path: Path) -> list[str]:
    """A task for each script, with the script in every field, in three statuses; workers and controls full of them."""
    engine = SqliteEngine(path)
    await engine.open()
    try:
        ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(len(SCRIPTS))]
        tasks = [
            NewTask(
                id=task_id,
                queue=script,
                type=script,
                payload=json.dumps({script: script, "list": [script, {script: [script]}]}).encode(),
                needs=(script,),
                idempotency_key=script,
                trace_id=script,
                batch=script,
            )
            for task_id, script in zip(ids, SCRIPTS, strict=True)
        ]
        await engine.add(tasks)
        for number, script in enumerate(SCRIPTS):
            want = ClaimRequest(
                worker_id=script, lease_id=f"{number:032x}", types=(script,), capabilities=frozenset(SCRIPTS)
            )
            for task in await engine.claim(want):
                result = json.dumps({script: [script]}).encode()
                trace = f"{script}\nTraceback (most recent call last):\n  {script}"
                if number % 3 < 2:
                    await engine.apply([complete(task, result) if number % 3 else fail(task, trace)])
            note = notes.WorkerNote(
                worker_id=script,
                started_at=0.0,
                last_heartbeat=system_clock(),
                queues=(script,),
                types=(script,),
                capabilities=(script,),
                capacity=1,
                current_load=1,
                current_tasks=(script, ids[number]),
                host=script,
                version=script,
            )
            name = f"{notes.WORKERS}{number}"
            await engine.write_note(name, msgspec.json.encode(note), expected=ANY)
        await _add_schedule(engine)
        await _add_workflow(engine)
        control = notes.Controls(
            paused_queues=frozenset(SCRIPTS), paused_types=frozenset(SCRIPTS), rate_limits=dict.fromkeys(SCRIPTS, 1.0)
        )
        await engine.write_note(notes.CONTROL, msgspec.json.encode(control), expected=ANY)
    finally:
        await engine.close()
    return ids


WORKFLOW = WorkflowGraph(
    token="0123456789abcdef0123",
    name=SCRIPTS[1],  # without a slash: it is part of an address
    key=SCRIPTS[0],
    created_at=0.0,
    nodes=tuple(GraphNode(type=script, parents=(0,) if at else ()) for at, script in enumerate(SCRIPTS)),
)


async def _add_workflow(engine: SqliteEngine) -> None:
    """A workflow with a script in its name, its key and the type of each task; half of its tasks are missing."""
    await engine.write_note(GRAPHS + WORKFLOW.token, encode_graph(WORKFLOW), expected=ANY)
    tasks = zip(WORKFLOW.task_ids(), SCRIPTS, strict=True)
    await engine.add([NewTask(id=id, queue=type, type=type, batch=WORKFLOW.id) for id, type in list(tasks)[::2]])


async def _add_schedule(engine: SqliteEngine) -> None:
    """A schedule whose results are full of scripts; other fields with scripts make a schedule unreadable."""
    task = NewTask(id=NO_ID, queue="default", type="evil")
    stored = created_note(make_schedule("evil", task, every=60.0), system_clock(), from_code=False)
    results = tuple(
        Fire(at=0.0, outcome="missed", decided_at=0.0, reason=script, task_id=script) for script in SCRIPTS[-20:]
    )
    stored = replace(stored, recent=results, paused=True)
    await engine.write_note("schedules/evil", msgspec.json.encode(stored), expected=ANY)
