"""Where the boxes of a workflow's graph are drawn."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from playwright.async_api import Page

from tests.dashboard.chromium import call

pytestmark = pytest.mark.asyncio(loop_scope="session")
_ROW = 60.0  # pixels: a box and the gap below it


@pytest.mark.parametrize("seed", [3, 35, 51])  # graphs of which a part has no line to the others
async def test_the_parts_of_a_graph_are_near_each_other(modules: Page, seed: int) -> None:
    dice = random.Random(seed)
    parents = [sorted(dice.sample(range(max(0, at - 12), at), min(at, dice.randint(0, 3)))) for at in range(50)]
    layers = list[int]()
    for each in parents:
        layers.append(1 + max((layers[parent] for parent in each), default=-1))
    lines = [(parent, at) for at, each in enumerate(parents) for parent in each]
    graph = {"boxes": [{"layer": layer} for layer in layers], "lines": lines}
    made = await call(modules, "../parts/graph_layout.js", "m.layOut(argument.boxes, argument.lines)", graph)
    assert made["height"] < 2 * max(Counter(layers).values()) * _ROW
    places = sorted((layer, place["y"]) for layer, place in zip(layers, made["places"], strict=True))
    gaps = [y - above for (one, above), (other, y) in pairwise(places) if one == other]
    assert min(gaps) > _ROW - 1, "no box covers another"
