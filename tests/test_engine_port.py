"""The port is closed: wrappers have all of it, and nothing above the engines asks what an engine is."""

import re
from pathlib import Path

import qo
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.forwarding_engine import ForwardingEngine
from qo.metrics import Measured, Meters

SOURCES = Path(qo.__file__).parent
ABOVE = [path for path in SOURCES.rglob("*.py") if "engines" not in path.parts and path.parent.name != "testing"]


class _Odd(MemoryEngine):
    payload_limit = 5
    default_retention = 7.0
    shards = "0f"
    is_remote = True
    registers_consumers = False
    advances_workflows = True


def test_a_forwarding_engine_forwards_every_member_of_the_port() -> None:
    members = {name for name in vars(Engine) if not name.startswith("_")}
    assert len(members) > 20
    assert members <= vars(ForwardingEngine).keys()


def test_a_measured_engine_has_the_facts_of_the_one_it_measures() -> None:
    odd = _Odd()
    measured = Measured(odd, Meters())
    facts = [name for name, member in vars(Engine).items() if isinstance(member, property)]
    assert {
        "payload_limit",
        "default_retention",
        "shards",
        "is_remote",
        "registers_consumers",
        "advances_workflows",
    } <= set(facts)
    assert [getattr(measured, fact) for fact in facts] == [getattr(odd, fact) for fact in facts]


def test_nothing_above_the_engines_asks_what_an_engine_is() -> None:
    asks = re.compile(
        r"isinstance\([\w.]*engine\b|isinstance\([^)]*\b\w*Engine\b|type\([\w.]*engine\)|engine\.__(class|module)__|getattr\([\w.]*engine,"
    )
    found = [f"{path}: {line}" for path in ABOVE for line in path.read_text().splitlines() if asks.search(line)]
    assert not found
