import json
from pathlib import Path
from typing import Any

import pytest

DEEP = "[" * 65 + "]" * 65
REFUSED = {
    "NaN": '{"x": NaN}',
    "infinity": '{"x": -Infinity}',
    "an overflowing float": '{"x": 1e999}',
    "an integer above 2^63": '{"x": 9223372036854775808}',
    "an integer below -2^63": '{"x": -9223372036854775809}',
    "an absurd integer": '{"x": ' + "9" * 5000 + "}",
    "a lone surrogate": '{"x": "\\ud800"}',
    "a lone surrogate as key": '{"\\udfff": 1}',
    "a key twice": '{"x": 1, "x": 2}',
    "nesting deeper than 64": DEEP,
    "absurd nesting": "[" * 100_000,
    "NUL in text": '{"x": "a\\u0000b"}',
    "too much": json.dumps("x" * 262_145),
    "not JSON": "{to: me}",
    "raw data that is not base64": '{"$base64": "!!!"}',
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=list(REFUSED))
def test_a_payload_no_store_should_keep_is_refused_naming_the_field(call: Any, payload: str) -> None:
    error = call.error("submit", "--type", "t", "--input", "-", code=2, input=payload)
    assert error["field"] == "payload" and error["error"].startswith("payload:")


@pytest.mark.parametrize("payload", REFUSED.values(), ids=list(REFUSED))
def test_the_same_payload_is_refused_in_a_file_naming_line_and_field(call: Any, tmp_path: Path, payload: str) -> None:
    lines = tmp_path / "tasks.jsonl"
    lines.write_text('{"type": "t"}\n\n{"type": "t", "payload": ' + payload + ', "queue": "q"}\n')
    error = call.error("submit", str(lines), code=2)
    assert error["field"] == "payload" and error["error"].startswith("line 3: payload:")
    assert "nothing was submitted" in error["error"]
    assert call.error("stats", code=5)["error"].startswith("no store exists")


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("type", ["--type", "../etc"]),
        ("type", ["--type", "x" * 256]),
        ("type", ["--type", "-"]),
        ("queue", ["--type", "t", "--queue", "a b"]),
        ("priority", ["--type", "t", "--priority", "10"]),
        ("needs", ["--type", "t", "--needs", "gpu;drop"]),
        ("timeout", ["--type", "t", "--timeout", "0"]),
        ("timeout", ["--type", "t", "--timeout", "nan"]),
        ("max_retries", ["--type", "t", "--max-retries", "-1"]),
        ("delay", ["--type", "t", "--delay", "soon"]),
        ("run_at", ["--type", "t", "--run-at", "tomorrow"]),
        ("idempotency_key", ["--type", "t", "--idempotency-key", "a\nb"]),
        ("trace_id", ["--type", "t", "--trace-id", "\x00"]),
        ("id", ["--type", "t", "--id", "not-a-uuid"]),
    ],
)
def test_a_wrong_option_is_refused_naming_the_field(call: Any, field: str, options: list[str]) -> None:
    assert call.error("submit", *options, code=2)["field"] == field


def test_all_options_reach_the_task(call: Any) -> None:
    task_id = call.submit(
        "t", "--input", '{"a": [1, "ü"]}', "--queue", "mail", "--priority", "high", "--delay", "2h",
        "--max-retries", "7", "--timeout", "5m", "--needs", "gpu,big", "--needs", "eu",
        "--trace-id", "trace", "--idempotency-key", "k",
    )  # fmt: skip
    task = call.json("status", task_id)
    assert task["payload"] == {"a": [1, "ü"]} and task["queue"] == "mail" and task["priority"] == 0
    assert task["max_retries"] == 7 and task["timeout"] == 300.0 and task["needs"] == ["big", "eu", "gpu"]
    assert task["trace_id"] == "trace" and task["idempotency_key"] == "k" and task["available_at"] > task["created_at"]


def test_a_key_gives_the_same_task_again(call: Any) -> None:
    first = call.json("submit", "--type", "t", "--idempotency-key", "k")
    second = call.json("submit", "--type", "t", "--idempotency-key", "k")
    assert first == {"id": second["id"], "new": True} and second["new"] is False
    refused = call("submit", "--type", "t", "--idempotency-key", "k", "--input", "1", code=4)
    assert first["id"] in refused.stderr and "another payload" in refused.stderr
    assert call.json("submit", "--type", "other", "--idempotency-key", "k", "--input", "1")["new"] is True


def test_input_comes_from_a_file(call: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"from": "file"}')
    task_id = call.submit("t", "--input", f"@{tmp_path / 'in.json'}")
    assert call.json("status", task_id)["payload"] == {"from": "file"}
    assert call.error("submit", "--type", "t", "--input", "@missing.json", code=2)["field"] == "payload"


def test_raw_data_travels_as_base64(call: Any) -> None:
    task_id = call.submit("t", "--input", '{"$base64": "AAEC"}')
    assert call.json("status", task_id)["payload"] == {"$base64": "AAEC"}


def test_in_a_pipe_the_id_stands_alone(call: Any) -> None:
    task_id = call("submit", "--type", "t").stdout.strip()
    assert call.json("status", task_id)["status"] == "pending"


def test_delay_and_run_at_exclude_each_other(call: Any) -> None:
    assert "not both" in call.error("submit", "--type", "t", "--delay", "1", "--run-at", "2030-01-01", code=2)["error"]


def test_waiting_too_long_is_an_error(call: Any) -> None:
    assert "still pending" in call.error("submit", "--type", "t", "--wait", "0.01", code=1)["error"]


# --- many


def test_a_file_is_submitted_line_by_line(call: Any, tmp_path: Path) -> None:
    lines = tmp_path / "tasks.jsonl"
    described: list[dict[str, Any]] = [
        {"type": "t", "payload": {"n": n}, "queue": "mail", "priority": "low"} for n in range(2500)
    ]
    described += [{"type": "t", "idempotency_key": "k", "retry": {"initial": 5}, "needs": ["gpu"], "delay": 60}] * 2
    lines.write_text("\n".join(map(json.dumps, described)))
    answer = call.json("submit", str(lines))
    assert (answer["submitted"], answer["already_there"]) == (2501, 1)
    assert len(answer["ids"]) == 2502 and answer["ids"][-1] == answer["ids"][-2]
    assert call.json("stats")["by_queue"]["mail"]["pending"] == 2500
    assert call.json("status", answer["ids"][-1])["retry"]["initial"] == 5.0


def test_available_at_is_another_name_for_run_at(call: Any) -> None:
    answer = call.json("submit", "-", input='{"type": "t", "available_at": "2030-01-31T08:00:00Z"}\n')
    assert call.json("status", answer["ids"][0])["available_at"] == "2030-01-31T08:00:00.000Z"


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("prioritty", '{"type": "t", "prioritty": 1}'),
        ("status", '{"type": "t", "status": "completed"}'),
        ("type", '{"payload": {}}'),
        ("type", '{"type": 7}'),
        ("needs", '{"type": "t", "needs": "gpu"}'),
        ("needs", '{"type": "t", "needs": [1]}'),
        ("timeout", '{"type": "t", "timeout": "long"}'),
        ("timeout", '{"type": "t", "timeout": true}'),
        ("priority", '{"type": "t", "priority": NaN}'),
        ("retry", '{"type": "t", "retry": {"first": 1}}'),
        ("retry.jitter", '{"type": "t", "retry": {"jitter": 2}}'),
        ("run_at", '{"type": "t", "run_at": 1, "delay": 1}'),
        ("idempotency_key", '{"type": "t", "idempotency_key": 5}'),
        ("line", "[]"),
        ("line", '{"type": "t"'),
        ("line", '{"type": "a", "type": "b"}'),
    ],
)
def test_a_wrong_line_names_its_field(call: Any, field: str, line: str) -> None:
    error = call.error("submit", "-", code=2, input=line)
    assert error["field"] == field and error["error"].startswith("line 1:")


def test_a_file_with_a_wrong_line_submits_nothing(call: Any, tmp_path: Path) -> None:
    lines = tmp_path / "tasks.jsonl"
    lines.write_text('{"type": "t"}\n{"type": "t"}\n{"typ": "t"}\nnonsense\n')
    call.submit("before")
    error = call.error("submit", str(lines), code=2)
    assert error["error"].startswith("line 3: typ:") and "line 4" in error["error"]
    assert call.json("stats")["pending"] == 1


def test_a_stream_reports_how_many_tasks_were_submitted_before_the_invalid_line(call: Any) -> None:
    error = call.error("submit", "-", code=2, input='{"type": "t"}\n{"type": "t"}\n{"typ": "t"}\n{"type": "t"}\n')
    assert "line 3: typ:" in error["error"] and "2 tasks before it were submitted" in error["error"]
    assert call.json("stats")["pending"] == 2


@pytest.mark.parametrize("from_file", [True, False])
def test_on_request_wrong_lines_are_left_out(call: Any, tmp_path: Path, *, from_file: bool) -> None:
    text = '{"type": "t"}\nnonsense\n{"type": "t"}\n'
    (tmp_path / "tasks.jsonl").write_text(text)
    source = str(tmp_path / "tasks.jsonl") if from_file else "-"
    answer = call.json("submit", source, "--continue-on-error", code=2, input=None if from_file else text)
    assert answer["submitted"] == 2 and [bad["line"] for bad in answer["wrong_lines"]] == [2]


def test_options_of_one_task_do_not_mix_with_a_file(call: Any) -> None:
    assert "--queue" in call.error("submit", "-", "--queue", "q", code=2, input="")["error"]


def test_text_that_is_not_utf8_is_refused(call: Any) -> None:
    assert "UTF-8" in call.error("submit", "-", code=2, input=b'{"type": "\xff"}\n')["error"]
    assert "UTF-8" in call.error("submit", "--type", "t", "--input", "-", code=2, input=b'"\xff"')["error"]


def test_an_argument_gives_the_task_its_group(call: Any) -> None:
    given = ("submit", "--type", "t", "--input", '{"customer": 7}', "--fair-by")
    submitted = call.json(*given, "customer")
    assert call.json("status", submitted["id"])["group"] == "customer=7"
    assert call.error(*given, "tenant", code=2)["field"] == "fair_by"


@pytest.mark.parametrize(
    "command",
    [
        ["submit", "--type", "t"],
        ["submit", "-"],
        ["schedules", "add", "s", "--every", "5m", "--type", "t"],
        ["token", "create", "--name", "n", "--scopes", "read"],
    ],
    ids=lambda command: command[0],
)
def test_what_a_command_would_lose_at_its_end_is_refused(call: Any, command: list[str]) -> None:
    call.url = "memory://"
    error = call.error(*command, code=2, input='{"type": "t"}')["error"]
    assert error.startswith("memory:// is lost when this command ends")
