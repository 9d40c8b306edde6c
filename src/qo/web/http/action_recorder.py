"""What callers do over HTTP, recorded in the audit trail before they are answered.

Every route that changes something is recorded unless its scope says that it only adds or runs tasks. So a new route is
recorded although nobody thought of it; a handler adds details with `describe_action`.
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
_REFUSED = 400  # statuses from here on
_UNAVAILABLE = 503
_ACTORS: dict[CallerKind, ActorKind] = {"token": "token", "local": "anyone", "user": "user"}
_VERBS = {
    "archived": "archive",
    "cancelled": "cancel",
    "deleted": "delete",
    "draining": "drain",
    "limited": "limit",
    "paused": "pause",
    "replayed": "replay",
    "resumed": "resume",
    "retried": "retry",
}


class RequestedAction:
    """One action of a request. Its handler fills in what has been changed so far."""

    def __init__(self) -> None:
        self.verb = ""  # empty: as the transition for the log says, else the first word of the handler's name
        self.target = ""
        self.task_ids: list[str] = []
        self.number: int | None = None  # tasks changed; None: as the transition for the log says
        self.is_unknown = False  # True: the store may or may not have taken part of it

    def add(self, ids: Sequence[str], answers: Sequence[bool]) -> None:
        """Of these tasks, those that were changed."""
        changed = [task_id for task_id, done in zip(ids, answers, strict=True) if done]
        self.task_ids += changed
        self.count(len(changed))

    def count(self, number: int) -> None:
        """So many more tasks were changed. Said at once: what fails after it must not hide it."""
        self.number = (self.number or 0) + number


class ActionRecorder:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._clock = StoreTime(engine, clock)
        self.trail = AuditTrail(engine, clock=self._clock)
        self._recordings: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, app: ASGIApp) -> None:
        """Answer a request, and record what it did just before the answer begins."""
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
        except asyncio.CancelledError:  # its time is up, or the server ends
            if not is_recorded:
                await self._record_cut(scope)
            raise

    async def close(self) -> None:
        """Wait for what is being recorded."""
        if self._recordings:
            await asyncio.wait(self._recordings)
        await self.trail.close()

    async def _record_cut(self, scope: HTTPScope) -> None:
        """A request that is not answered may have changed something once its handler had begun."""
        values = cast("dict[str, Any]", scope)
        handler = values.get("route_handler")
        if "qo_action" not in values:
            if handler is None or "data" in handler.parsed_fn_signature.parameters:
                return  # what takes a body describes its action as soon as it has read it
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
        """Record what this request's caller did, by default its admitted one; finished even if the request is not."""
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
        with contextlib.suppress(StorageError):  # else by this machine's clock
            await self._clock.update()
        await self.trail.record(new_record(at=self._clock(), **about))


def recorder_of(state: State) -> ActionRecorder:
    """The application's own; made when it is first asked for."""
    recorder: ActionRecorder | None = state.get("action_recorder")
    if recorder is None:
        clock = state.get("clock") or system_clock
        recorder = state["action_recorder"] = ActionRecorder(state["client"].engine, clock)
    return recorder


def describe_action(request: Request[Any, Any, Any], target: str = "", /, **names: Sequence[str]) -> RequestedAction:
    """What this request is about to do, for the trail: `describe_action(request, queue=["mail"])`."""
    action = RequestedAction()
    words = [f"{kind} {' '.join(given)}" for kind, given in names.items() if given]
    action.target = ", ".join([target, *words] if target else words)
    request.scope["qo_action"] = action  # type: ignore[typeddict-unknown-key]
    return action


def note_failure(request: Request[Any, Any, Any], error: Exception) -> None:
    """Remember for the trail that the store may have taken what this request asked for."""
    if isinstance(error, OutcomeUnknown):
        values = cast("dict[str, Any]", request.scope)
        action = values.setdefault("qo_action", RequestedAction())
        action.is_unknown = True
