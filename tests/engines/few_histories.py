"""Fewer random histories, for engines whose decisions are those of another engine that runs all of them."""

import os

import pytest

from qo.engine import Engine
from qo.testing import ManualClock, random_history


class FewHistories:
    """Put it before EngineContract. `make torture` runs all histories of the contract."""

    @pytest.mark.parametrize("seed", range(12 if os.environ.get("QO_TORTURE") else 3))
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
