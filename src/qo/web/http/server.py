"""The parts of a server that request handlers share."""

from typing import Any

from litestar import Request
from litestar.datastructures import State
from msgspec import Struct

from qo.client import Client
from qo.client.batches import BatchReader
from qo.clock import Clock
from qo.errors import InvalidSetting, InvalidTask, TaskNotFound
from qo.fleet_limits.limit_status import WaitingGroupsReader
from qo.model import Task, check_id
from qo.web.http.access import Gate
from qo.web.http.action_recorder import ActionRecorder
from qo.web.http.edge import RequestsInFlight
from qo.web.http.settings import WebSettings
from qo.web.oidc.login import LoginService
from qo.web.stats.sampler import PendingKinds, QueuePosition, StoreViews, UnhandledTypes
from qo.web.stats.server_metrics import ServerMetrics
from qo.web.stats.throughput import RecentStats


class Server(Struct, frozen=True, kw_only=True):
    client: Client
    settings: WebSettings
    clock: Clock
    gate: Gate
    views: StoreViews
    position: QueuePosition
    in_flight: RequestsInFlight
    recent_stats: RecentStats
    metrics: ServerMetrics
    action_recorder: ActionRecorder
    login: LoginService | None
    unhandled: UnhandledTypes
    pending_kinds: PendingKinds
    batches: BatchReader
    waiting_groups: WaitingGroupsReader

    def state(self) -> State:
        """The state of the application: each part under its name, and this object as `server`."""
        return State({"server": self} | {name: getattr(self, name) for name in self.__struct_fields__})


def new_server(client: Client, settings: WebSettings, clock: Clock) -> Server:
    """Raises InvalidSetting if the settings contradict each other."""
    if settings.oidc is not None and settings.hosts and not settings.oidc.public_url:
        raise InvalidSetting(
            f"users log in at {settings.hosts[0]}, so set the URL at which browsers reach it: --public-url https://..."
        )
    views = StoreViews(client.engine, interval=settings.sample_interval, clock=clock)
    login = None if settings.oidc is None else LoginService(client.engine, settings.oidc, clock)
    recent = RecentStats(client, clock)
    kinds = PendingKinds(client.engine, clock)
    return Server(
        client=client,
        settings=settings,
        clock=clock,
        gate=Gate(client.engine, settings, clock, login=login),
        views=views,
        position=QueuePosition(views.whole.sampler),
        in_flight=RequestsInFlight(settings.limits),
        recent_stats=recent,
        metrics=ServerMetrics(client, views.whole.sampler, recent, clock, dead_after=settings.dead_after, kinds=kinds),
        action_recorder=ActionRecorder(client.engine, clock),
        login=login,
        unhandled=UnhandledTypes(client.engine, clock, dead_after=settings.dead_after),
        pending_kinds=kinds,
        batches=BatchReader(client.engine),
        waiting_groups=WaitingGroupsReader(client.engine),
    )


def server_of(request: Request[Any, Any, Any]) -> Server:
    server: Server = request.app.state.server
    return server


def known_id(task_id: str) -> str:
    """The id in lower case. Raises TaskNotFound if it is not a task id."""
    try:
        return check_id(task_id.lower())
    except InvalidTask as error:
        raise TaskNotFound(f"there is no task {task_id!r:.80}: task ids are UUIDs") from error


def log_transition(request: Request[Any, Any, Any], transition: str, task: Task | None = None, **fields: Any) -> None:
    """Add a transition made by this request to the request's log line."""
    if task is not None:
        fields = {"task_id": task.id, "type": task.type, "queue": task.queue, **fields}
    request.scope["qo_transition"] = {"transition": transition, **fields}  # type: ignore[typeddict-unknown-key]
