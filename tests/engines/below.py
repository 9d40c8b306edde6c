"""The engine of a store below those that forward to it."""

from qo.engine import Engine
from qo.forwarding_engine import ForwardingEngine


def below(engine: Engine) -> Engine:
    while isinstance(engine, ForwardingEngine):
        engine = engine.engine
    return engine
