"""The store's time goes on evenly, whatever becomes of this machine's own clock."""

from qo.engines.memory import MemoryEngine
from qo.store_time import StoreTime
from qo.testing import ManualClock


async def test_a_machine_whose_clock_is_set_uses_the_stores_clock() -> None:
    store, wall, elapsed = ManualClock(1000.0), ManualClock(1300.0), ManualClock(50.0)
    clocks = store, wall, elapsed
    time = StoreTime(MemoryEngine(store), wall, elapsed)
    assert time() == 1300.0  # it has not looked
    await time.update()
    assert time() == 1000.0
    for clock in clocks:
        clock.advance(10)
    wall.advance(600)
    assert time() == 1010.0
    await time.update()
    assert time() == 1010.0


async def test_a_machine_that_was_suspended_checks_again() -> None:
    """A virtual machine whose clocks stood still, until its own was set."""
    store, wall, elapsed = ManualClock(1000.0), ManualClock(1000.0), ManualClock(50.0)
    time = StoreTime(MemoryEngine(store), wall, elapsed)
    await time.update()
    store.advance(600)
    await time.update()
    assert time() == 1000.0  # within the minute for which a look is good
    wall.advance(600)
    await time.update()
    assert time() == 1600.0
