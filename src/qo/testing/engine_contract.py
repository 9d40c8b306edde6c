"""The contract of engines: tests that every engine must pass. A bug found in one engine becomes a test for all."""

import pytest

from qo.testing.clock import ManualClock
from qo.testing.engine_add import AddContract, UniquenessContract
from qo.testing.engine_changes import ChangeContract
from qo.testing.engine_claims import ClaimContract, ClockSet, RaceContract
from qo.testing.engine_damage import DamageContract
from qo.testing.engine_groups import FleetLimitContract, GroupContract
from qo.testing.engine_notes import AuditContract, NotesContract, ScheduleContract, StatsContract
from qo.testing.engine_operations import OperationContract
from qo.testing.engine_order import ClaimOrderContract
from qo.testing.engine_reads import ReadContract
from qo.testing.engine_reports import ReportsContract
from qo.testing.engine_workflows import WorkflowContract


class EngineContract(
    AddContract,
    ClaimContract,
    ClaimOrderContract,
    GroupContract,
    FleetLimitContract,
    ChangeContract,
    OperationContract,
    ClockSet,
    ReadContract,
    AuditContract,
    NotesContract,
    RaceContract,
    StatsContract,
    DamageContract,
    ReportsContract,
    UniquenessContract,
    ScheduleContract,
    WorkflowContract,
):
    """Subclass it and define a fixture `engine` that returns an empty, open engine, which takes its time from `clock`.

    Also define `damage`, which overwrites one stored task: the contract tests that it affects no other task.
    """

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()
