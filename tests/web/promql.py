"""Just enough PromQL to check a document: which metrics an expression names, and which labels it asks of them."""

import re
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_SELECTOR = re.compile(r"\b([a-z_][a-z0-9_]*)\s*(\{[^}]*\})?(?=\s*(\[|\)|$|[-+*/<>=!,]|\s))")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_WORDS = frozenset(
    [
        "sum",
        "max",
        "min",
        "avg",
        "count",
        "rate",
        "increase",
        "irate",
        "histogram_quantile",
        "by",
        "without",
        "on",
        "ignoring",
        "or",
        "and",
        "unless",
        "absent",
        "vector",
        "bool",
    ]
)

_OF_THE_TARGET = frozenset({"instance", "job"})  # labels that Prometheus itself adds

Shown = dict[str, list[dict[str, str]]]  # by name: the labels of each series


class Selector(NamedTuple):
    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def shown(text: str) -> Shown:
    """What a scrape shows."""
    series: Shown = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(dict(sample.labels))
    return series


def selectors(expression: str) -> list[Selector]:
    bare = re.sub(r"\[[^\]]*\]", "[5m]", _GROUPING.sub(" ", expression))
    quoted = re.sub(r'"[^"]*"', lambda found: found[0].replace(")", ""), bare)
    found = []
    for name, labels, _ in _SELECTOR.findall(quoted):
        if name not in _WORDS and not re.search(rf"\b{name}\s*\(", quoted):
            found.append(Selector(name, tuple(_MATCHER.findall(labels or ""))))
    return found


def grouped_by(expression: str) -> set[str]:
    return {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",") if label.strip()}


def problems(expression: str, series: Shown) -> list[str]:
    """What the expression asks for that nobody shows."""
    wrong = []
    asked = selectors(expression)
    if not asked or expression.count("(") != expression.count(")"):
        return [f"{expression!r} names no metric, or its brackets do not match"]
    for metric, matchers in asked:
        if metric not in series:
            wrong.append(f"no metric {metric}")
            continue
        for label, how, value in matchers:
            if not any(_matches(labels.get(label), how, value) for labels in series[metric]):
                wrong.append(f"{metric} never has {label}{how}{value!r}")
        known = set().union(*(labels.keys() for labels in series[metric]))
        wrong += [f"{metric} has no label {label}" for label in sorted(grouped_by(expression) - known - _OF_THE_TARGET)]
    return wrong


def _matches(given: str | None, how: str, value: str) -> bool:
    if given is None:
        return False
    same = re.fullmatch(value, given) is not None if "~" in how else given == value
    return same is not how.startswith("!")
