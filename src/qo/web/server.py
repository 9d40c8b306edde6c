"""What handlers share: one queue, and what is known about it."""

from typing import Any

from litestar import Litestar, Request
from litestar.datastructures import State
from msgspec import Struct

from qo.client import Client
from qo.clock import Clock
from qo.errors import InvalidSetting, InvalidTask, TaskNotFound
from qo.model import Task, check_id
from qo.web.access import Gate
from qo.web.action_recorder import ActionRecorder
from qo.web.feed import Feed
from qo.web.health import Ticker
from qo.web.in_flight import RequestsInFlight
from qo.web.management.retry_counts import RetryCounts
from qo.web.metrics import ServerMetrics
from qo.web.oidc.service import LoginService
from qo.web.remote.time_limits import TimeLimits
from qo.web.settings import WebSettings
from qo.web.stats.queue_position import QueuePosition
from qo.web.stats.recent_stats import RecentStats
from qo.web.store_views import StoreViews
from qo.web.unhandled import UnhandledTypes


class Server(Struct, frozen=True, kw_only=True):
    queue: Client
    settings: WebSettings
    clock: Clock
    gate: Gate
    views: StoreViews
    line: QueuePosition
    feed: Feed
    ticker: Ticker
    in_flight: RequestsInFlight
    retry_counts: RetryCounts
    recent_stats: RecentStats
    time_limits: TimeLimits
    metrics: ServerMetrics
    action_recorder: ActionRecorder
    login: LoginService | None
    unhandled: UnhandledTypes

    def state(self) -> State:
        """As an application keeps it: each part under its own name, and the whole."""
        return State({"server": self} | {name: getattr(self, name) for name in self.__struct_fields__})


def new_server(queue: Client, settings: WebSettings, clock: Clock) -> Server:
    views = StoreViews(queue.engine, interval=settings.sample_interval, clock=clock)
    sampler = views.whole.sampler
    if settings.oidc is not None and settings.hosts and not settings.oidc.public_url:
        raise InvalidSetting(
            f"people log in at {settings.hosts[0]}, so say where browsers reach it: --public-url https://..."
        )
    login = None if settings.oidc is None else LoginService(queue.engine, settings.oidc, clock)
    gate = Gate(queue.engine, settings, clock, login=login)
    recent = RecentStats(queue, clock)
    unhandled = UnhandledTypes(queue.engine, clock, dead_after=settings.dead_after)
    return Server(
        queue=queue,
        settings=settings,
        clock=clock,
        gate=gate,
        views=views,
        line=QueuePosition(sampler),
        feed=Feed(queue.engine, gate.is_admitted, most=settings.listeners),
        ticker=Ticker(),
        in_flight=RequestsInFlight(settings.limits),
        retry_counts=RetryCounts(queue.engine),
        recent_stats=recent,
        time_limits=TimeLimits(queue),
        metrics=ServerMetrics(queue, sampler, recent, clock, dead_after=settings.dead_after),
        action_recorder=ActionRecorder(queue.engine, clock),
        login=login,
        unhandled=unhandled,
    )


def server_of(request: Request[Any, Any, Any]) -> Server:
    app: Litestar = request.app
    server: Server = app.state.server
    return server


def known_id(task_id: str) -> str:
    try:
        return check_id(task_id.lower())
    except InvalidTask as error:
        raise TaskNotFound(f"there is no task {task_id!r:.80}: ids are UUIDs") from error


def tell(request: Request[Any, Any, Any], what: str, task: Task | None = None, **about: Any) -> None:
    """A transition made by this request, for the log: its one line carries it."""
    if task is not None:
        about = {"task_id": task.id, "type": task.type, "queue": task.queue, **about}
    request.scope["qo_transition"] = {"transition": what, **about}  # type: ignore[typeddict-unknown-key]
