"""The lanes that come first are those that sorting all heads would show."""

from random import Random

import pytest

from qo.model import ClaimRequest, LaneHead, LaneHeads, LaneIdentity, effective_rank, eligible

TYPES = [f"t{n}" for n in range(90)]


def wanted(limit: int = 5, types: tuple[str, ...] = (), **fields: object) -> ClaimRequest:
    return ClaimRequest(worker_id="w", lease_id="l", limit=limit, types=types, **fields)  # type: ignore[arg-type]


def expected(lanes: dict[int, tuple[LaneIdentity, LaneHead]], request: ClaimRequest, now: float) -> list[int]:
    heads = sorted(
        (effective_rank(head.rank, head.due_at, now), head.rank, head.place, key, name.type)
        for key, (name, head) in lanes.items()
        if eligible(request, *name)
    )
    first: list[int] = []
    for *_, key, type_ in heads:
        of_type = sum(lanes[other][0].type == type_ for other in first)
        if of_type < request.per_type_limits.get(type_, request.limit) and len(first) < request.limit:
            first.append(key)
    return first


@pytest.mark.parametrize("seed", range(5))
def test_the_first_lanes_are_those_that_sorting_would_show(seed: int) -> None:
    dice = Random(seed)
    heads: LaneHeads[int] = LaneHeads()
    lanes: dict[int, tuple[LaneIdentity, LaneHead]] = {}
    requests = [
        wanted(),
        wanted(limit=0),
        wanted(queues=("x",), capabilities=frozenset({"gpu"})),
        wanted(types=("t1", "t2", "none")),
        wanted(types=(*TYPES, *TYPES)),
        wanted(per_type_limits={type_: n % 2 for n, type_ in enumerate(TYPES)}),
    ]
    now = 0.0
    for step in range(600):
        key, now = dice.randrange(150), now + dice.random()
        name = LaneIdentity("xy"[key % 2], TYPES[key % 90], ((), ("gpu",))[key % 3 == 0])
        head = LaneHead(now + dice.choice([0.0, 5.0, 30.0]), step, now - 0.5) if dice.random() < 0.8 else None
        if head is None:
            heads.remove(key)
            lanes.pop(key, None)
        else:
            heads.put(key, name, head)
            lanes[key] = (name, head)
        if step % 3 == 0:
            request = dice.choice(requests)
            assert heads.first(request, now) == expected(lanes, request, now)
    assert len(heads) == len(lanes)
    heads.clear()
    assert heads.first(requests[0], now) == [] and len(heads) == 0


def test_a_view_does_not_grow_with_what_was_there_before() -> None:
    heads: LaneHeads[int] = LaneHeads()
    names = [LaneIdentity("q", f"t{n}", ()) for n in range(70)]
    for n, name in enumerate(names):
        heads.put(n, name, LaneHead(float(n), n, 0.0))
    assert heads.first(wanted(), 0.0) == [0, 1, 2, 3, 4]
    for step in range(1000):
        heads.put(7, names[7], LaneHead(100.0 + step, step, 0.0))
        heads.put(7, names[7], LaneHead(100.0 + step, step, 0.0))
    assert all(size < 300 for size in heads.view_sizes)
    assert heads.first(wanted(limit=70), 0.0)[-1] == 7


def test_only_some_kinds_of_workers_have_a_view() -> None:
    heads: LaneHeads[int] = LaneHeads()
    for n in range(70):
        heads.put(n, LaneIdentity("q", f"t{n}", ()), LaneHead(float(n), n, 0.0))
    for n in range(50):
        assert heads.first(wanted(capabilities=frozenset({str(n)})), 0.0) == [0, 1, 2, 3, 4]
    assert len(heads.view_sizes) < 20
