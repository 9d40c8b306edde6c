"""The options of `qo serve` that say what its clients may cost. Their defaults are those of `qo.web.http.settings`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qo.cli.context import option
from qo.cli.params import DURATION

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    option(
        "--max-connections",
        type=click.IntRange(1),
        default=1000,
        var="QO_MAX_CONNECTIONS",
        help="Connections at once; one more closes the one that waits longest for a request.",
    ),
    option(
        "--max-header-size",
        type=click.IntRange(1024),
        default=32 * 1024,
        var="QO_MAX_HEADER_SIZE",
        help="Bytes of a request line and its headers.",
    ),
    option(
        "--header-timeout",
        type=DURATION,
        default=10.0,
        var="QO_HEADER_TIMEOUT",
        help="How long the headers of a request may take.",
    ),
    option(
        "--idle-timeout",
        type=DURATION,
        default=75.0,
        var="QO_IDLE_TIMEOUT",
        help="How long a connection may wait for its next request.",
    ),
    option(
        "--request-timeout",
        type=DURATION,
        default=120.0,
        var="QO_REQUEST_TIMEOUT",
        help="How long a request may take, from its headers to the last byte of its answer; event streams have no end.",
    ),
    option(
        "--max-upload-memory",
        type=click.IntRange(1),
        default=64,
        var="QO_MAX_UPLOAD_MEMORY",
        help="MiB of request bodies in memory; beyond it the oldest unfinished uploads are refused.",
    ),
    option(
        "--max-unsent-memory",
        type=click.IntRange(1),
        default=32,
        var="QO_MAX_UNSENT_MEMORY",
        help="MiB of answers that clients have not read; beyond it the slowest readers are cut off.",
    ),
)


def limit_options(function: Function) -> Function:
    for each in reversed(_OPTIONS):
        function = each(function)
    return function
