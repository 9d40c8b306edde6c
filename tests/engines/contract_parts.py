"""Parts of the contract that an engine runs only in `make torture`, because another engine runs the same code."""

import os
from collections.abc import Callable
from typing import TypeVar

from qo.testing.engine_add import UniquenessContract
from qo.testing.engine_changes import ChangeContract
from qo.testing.engine_groups import FleetLimitContract, GroupContract
from qo.testing.engine_notes import ScheduleContract, StatsContract
from qo.testing.engine_order import ClaimOrderContract
from qo.testing.engine_reads import ReadContract
from qo.testing.engine_reports import ReportsContract
from qo.testing.engine_workflows import WorkflowContract

Contract = TypeVar("Contract", bound=type)
# Tests of what is stored and in which order it is claimed. If only the way to the store differs, they test nothing new.
CONTENT = (
    ChangeContract,
    ClaimOrderContract,
    FleetLimitContract,
    GroupContract,
    ReadContract,
    ReportsContract,
    ScheduleContract,
    StatsContract,
    UniquenessContract,
    WorkflowContract,
)


def left_to_torture(*parts: type) -> Callable[[Contract], Contract]:
    """Decorate a subclass of EngineContract: `make test` leaves these parts out."""

    def decorate(contract: Contract) -> Contract:
        if not os.environ.get("QO_TORTURE"):
            for name in (name for part in parts for name in vars(part) if name.startswith("test_")):
                setattr(contract, name, None)  # pytest collects only what can be called
        return contract

    return decorate
