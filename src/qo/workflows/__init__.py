"""Workflows above the engine port: their notes, decisions after each settlement, and results as arguments."""

from qo.workflows.engine import WorkflowEngine
from qo.workflows.graph_note import (
    GRAPHS,
    decode_graph,
    encode_graph,
    extend_graph,
    read_graph,
)
from qo.workflows.open_markers import (
    OPEN_WORKFLOWS,
    OpenWorkflow,
    drop_markers,
    mark_open,
    marked_revision,
    marked_token,
    newest_open_tokens,
    open_tokens,
)
from qo.workflows.tracker import WorkflowTracker

__all__ = [
    "GRAPHS",
    "OPEN_WORKFLOWS",
    "OpenWorkflow",
    "WorkflowEngine",
    "WorkflowTracker",
    "decode_graph",
    "drop_markers",
    "encode_graph",
    "extend_graph",
    "mark_open",
    "marked_revision",
    "marked_token",
    "newest_open_tokens",
    "open_tokens",
    "read_graph",
]
