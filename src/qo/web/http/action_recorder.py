"""Records the actions of callers in the audit trail, before the response is sent.

Every route that changes something is recorded, except those whose scope only adds or runs tasks. A new route is
therefore recorded by default; its handler adds details with `describe_action`.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, cast

from litestar import Request
from litestar.datastructures import State
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Send

from qo.audit import ActionOutcome, ActorKind, AuditTrail, new_record
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.errors import OutcomeUnknown, StorageError
from qo.store_time import StoreTime
from qo.web.callers import Caller, CallerKind, Scope

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_RECORDED = frozenset({Scope.SUBMIT, Scope.WORK, Scope.ENGINE})  # the engine port records its actions itself
_REFUSED = 400  # this status and above
_UNAVAILABLE = 503
_ACTORS: dict[CallerKind, ActorKind] = {"token": "token", "local": "anyone", "user": "user"}
_VERBS = {
    "archived": "archive",
    "cancelled": "cancel",
    "deleted": "delete",
    "draining": "drain",
    "limited": "limit",
    "paused": "pause",
    "priority": "priority",
    "rescheduled": "reschedule",
    "run-now": "run-now",
    "replayed": "replay",
    "resumed": "resume",
    "retried": "retry",
}


class RequestedAction:
    """One action of a request. The handler adds what it has changed."""

    def __init__(self) -> None:
        self.verb = ""  # empty: from the logged transition, or else the first word of the handler's name
        self.target = ""
        self.task_ids: list[str] = []
        self.number: int | None = None  # changed tasks; None: from the logged transition
        self.is_unknown = False  # the store may have made part of the change

    def add(self, ids: Sequence[str], answers: Sequence[bool]) -> None:
        """Count the tasks among these that were changed."""
        changed = [task_id for task_id, done in zip(ids, answers, strict=True) if done]
        self.task_ids += changed
        self.count(len(changed))

    def count(self, number: int) -> None:
        """Add changed tasks. Call it after each write, so that a later failure does not hide earlier changes."""
        self.number = (self.number or 0) + number


class ActionRecorder:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._clock = StoreTime(engine, clock)
        self.trail = AuditTrail(engine, clock=self._clock)
        self._recordings: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, app: ASGIApp) -> None:
        """Handle a request, and record its action just before the response starts."""
        if scope["method"] in _SAFE_METHODS:
            await app(scope, receive, send)
            return
        is_recorded = False

        async def send_recorded(message: Message) -> None:
            nonlocal is_recorded
            if message["type"] == "http.response.start":
                is_recorded = True
                await self._record_answered(scope, message["status"])
            await send(message)

        try:
            await app(scope, receive, send_recorded)
        except asyncio.CancelledError:  # the time limit of the request, or a shutdown
            if not is_recorded:
                await self._record_cut(scope)
            raise

    async def close(self) -> None:
        """Wait for unfinished records."""
        if self._recordings:
            await asyncio.wait(self._recordings)
        await self.trail.close()

    async def _record_cut(self, scope: HTTPScope) -> None:
        """Record a cancelled request: it may have changed something once its handler had started."""
        values = cast("dict[str, Any]", scope)
        handler = values.get("route_handler")
        if "qo_action" not in values:
            if handler is None or "data" in handler.parsed_fn_signature.parameters:
                return  # a handler with a body describes its action once it has read the body
            values["qo_action"] = RequestedAction()
        values["qo_action"].is_unknown = True
        await self._record_answered(scope, _UNAVAILABLE)

    async def _record_answered(self, scope: HTTPScope, status: int) -> None:
        values = cast("dict[str, Any]", scope)
        handler, caller = values.get("route_handler"), values.get("qo_caller")
        if handler is None or caller is None or handler.opt.get("scope", Scope.ADMIN) in _NOT_RECORDED:
            return
        done: dict[str, Any] = values.get("qo_transition", {})
        action: RequestedAction = values.get("qo_action") or RequestedAction()
        number = action.number if action.number is not None else done.get("number")
        if status >= _REFUSED and not number and not action.is_unknown:
            return
        if number == 0 and not action.is_unknown:
            return
        task_id = done.get("task_id") or values["path_params"].get("task_id")
        await self.record(
            scope,
            action.verb or _VERBS.get(done.get("transition", "")) or handler.handler_name.partition("_")[0],
            target=action.target or (f"worker {done['worker_id']}" if "worker_id" in done else ""),
            task_ids=action.task_ids or ([task_id] if task_id else []),
            number=1 if task_id and number is None else number,
            outcome="unknown" if action.is_unknown else "done",
        )

    async def record(
        self,
        scope: HTTPScope,
        action: str,
        *,
        caller: Caller | None = None,
        target: str = "",
        task_ids: Sequence[str] = (),
        number: int | None = None,
        outcome: ActionOutcome = "done",
    ) -> None:
        """Record an action, by default under the caller of the request. Completes even if the request is cancelled."""
        caller = caller or cast("dict[str, Any]", scope)["qo_caller"]
        client = scope.get("client")
        writing = asyncio.create_task(
            self._write(
                actor=_ACTORS[caller.kind],
                who=caller.name,
                action=action,
                target=target,
                task_ids=task_ids,
                number=number,
                outcome=outcome,
                origin=client[0] if client else "",
            )
        )
        self._recordings.add(writing)
        writing.add_done_callback(self._recordings.discard)
        await asyncio.shield(writing)

    async def _write(self, **about: Any) -> None:
        with contextlib.suppress(StorageError):  # the local clock is used then
            await self._clock.update()
        await self.trail.record(new_record(at=self._clock(), **about))


def recorder_of(state: State) -> ActionRecorder:
    """The recorder of the application, created on first use."""
    recorder: ActionRecorder | None = state.get("action_recorder")
    if recorder is None:
        clock = state.get("clock") or system_clock
        recorder = state["action_recorder"] = ActionRecorder(state["client"].engine, clock)
    return recorder


def describe_action(request: Request[Any, Any, Any], target: str = "", /, **names: Sequence[str]) -> RequestedAction:
    """Describe the action of this request for the trail: `describe_action(request, queue=["mail"])`."""
    action = RequestedAction()
    words = [f"{kind} {' '.join(given)}" for kind, given in names.items() if given]
    action.target = ", ".join([target, *words] if target else words)
    request.scope["qo_action"] = action  # type: ignore[typeddict-unknown-key]
    return action


def note_failure(request: Request[Any, Any, Any], error: Exception) -> None:
    """Record the outcome as unknown if the store may have made the change."""
    if isinstance(error, OutcomeUnknown):
        values = cast("dict[str, Any]", request.scope)
        action = values.setdefault("qo_action", RequestedAction())
        action.is_unknown = True
