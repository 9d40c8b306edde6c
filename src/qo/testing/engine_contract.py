"""What every engine promises. Written once, run against all of them; a bug found in one becomes a test for all."""

import pytest

from qo.testing.clock import ManualClock
from qo.testing.engine_add import AddContract
from qo.testing.engine_audit import AuditContract
from qo.testing.engine_changes import ChangeContract
from qo.testing.engine_claims import ClaimContract
from qo.testing.engine_clock import ClockSet
from qo.testing.engine_damage import DamageContract
from qo.testing.engine_notes import NotesContract
from qo.testing.engine_order import ClaimOrderContract
from qo.testing.engine_races import RaceContract
from qo.testing.engine_reads import ReadContract
from qo.testing.engine_stats import StatsContract


class EngineContract(
    AddContract,
    ClaimContract,
    ClaimOrderContract,
    ChangeContract,
    ClockSet,
    ReadContract,
    AuditContract,
    NotesContract,
    RaceContract,
    StatsContract,
    DamageContract,
):
    """Subclass it and give it an `engine` fixture: a fresh, open engine that takes its time from `clock`.

    Its `damage` spoils one stored task, so that the contract can say that all others go on.
    """

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()
