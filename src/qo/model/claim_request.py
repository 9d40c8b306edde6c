"""What a worker asks a store for: its queues, the types it handles, the capabilities it has."""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from qo.model.filter import lane_matcher

EXPIRY_GRACE = 5.0  # seconds a lease must be over before its task is taken away, because clocks disagree
LEASE = 60.0  # seconds a worker may go silent before its tasks are given to others


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a claim asks for. Empty `queues` or `types` means all."""

    worker_id: str
    lease_id: str  # fresh and random for every claim; repeating a claim uses the same one
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    limit: int = 1
    lease: float = LEASE
    per_type_limits: Mapping[str, int] = {}  # for some types, fewer than `limit`
    is_prefetch: bool = False  # handlers start later: `started_at` stays empty until a change sets it
    is_repeat: bool = False  # the answer to this claim was lost: give what it got, if it got anything


def eligibility(request: ClaimRequest) -> Callable[[str, str, Collection[str]], bool]:
    """As `eligible`, for many tasks: however many names the worker lists, each task costs the same."""
    covers, capabilities = lane_matcher(request.queues, request.types), request.capabilities
    return lambda queue, type_, needs: covers(queue, type_) and capabilities.issuperset(needs)


def eligible(request: ClaimRequest, queue: str, type: str, needs: Collection[str]) -> bool:
    return eligibility(request)(queue, type, needs)
