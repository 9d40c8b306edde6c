"""The request of a claim: the queues, types and capabilities of a worker."""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from qo.model.filter import lane_matcher

EXPIRY_GRACE = 5.0  # seconds after the expiry of a lease before its task is retried, because clocks differ
LEASE = 60.0  # seconds


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Empty `queues` or `types` means all."""

    worker_id: str
    lease_id: str  # random, new for every claim; a repeat uses the same one
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    limit: int = 1
    lease: float = LEASE
    per_type_limits: Mapping[str, int] = {}  # for some types, fewer than `limit`
    is_prefetch: bool = False  # the handlers start later: `started_at` stays None until a change sets it
    is_repeat: bool = False  # the first response was lost: return the tasks it leased, if any


def eligibility(request: ClaimRequest) -> Callable[[str, str, Collection[str]], bool]:
    """As `eligible`, for many tasks: the cost per task does not depend on the number of names."""
    covers, capabilities = lane_matcher(request.queues, request.types), request.capabilities
    return lambda queue, type_, needs: covers(queue, type_) and capabilities.issuperset(needs)


def eligible(request: ClaimRequest, queue: str, type: str, needs: Collection[str]) -> bool:
    return eligibility(request)(queue, type, needs)
