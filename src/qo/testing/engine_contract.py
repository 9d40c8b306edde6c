"""What every engine promises. Written once, run against all of them; a bug found in one becomes a test for all."""

import pytest

from qo.testing.clock import ManualClock
from qo.testing.engine_adding import Adding
from qo.testing.engine_audit import AuditContract
from qo.testing.engine_claiming import Claiming
from qo.testing.engine_clock import ClockSet
from qo.testing.engine_damage import Damage
from qo.testing.engine_notes import Notes
from qo.testing.engine_order import ClaimOrder
from qo.testing.engine_races import Races
from qo.testing.engine_reading import Reading
from qo.testing.engine_settling import Settling
from qo.testing.engine_stats import Stats


class EngineContract(
    Adding, Claiming, ClaimOrder, Settling, ClockSet, Reading, AuditContract, Notes, Races, Stats, Damage
):
    """Subclass it and give it an `engine` fixture: a fresh, open engine that takes its time from `clock`.

    Its `damage` spoils one stored task, so that the contract can say that all others go on.
    """

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()
