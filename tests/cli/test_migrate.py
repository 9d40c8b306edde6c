"""`qo migrate` on stores with tables, without, behind, and by many at once."""

import contextlib
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tests.servers.postgres import PostgresServer, url

__all__ = ["url"]  # a fixture
TOGETHER = 4


def test_check_reports_a_pending_migration_and_migrate_runs_it(call: Any, tmp_path: Path) -> None:
    behind = call.json("migrate", "--check", code=1)
    assert (behind["current"], behind["version"]) == (False, 0)
    assert not (tmp_path / "qo.db").exists()  # looking makes nothing
    assert "run qo migrate" in call("migrate", "--check", code=1).stdout
    done = call.json("migrate")
    assert (done["found"], done["version"], done["current"]) == (0, done["known"], True)
    assert "is up to date" in call("migrate", "--check").stdout
    assert "is up to date" in call("migrate").stdout
    call("stats")  # the store is there


def test_a_store_of_a_newer_qo_is_left_alone(call: Any, tmp_path: Path) -> None:
    call("migrate")
    with contextlib.closing(apsw.Connection(str(tmp_path / "qo.db"))) as db:
        db.execute("PRAGMA user_version = 999")
    for options in ((), ("--check",)):
        assert "newer" in call.error("migrate", *options, code=5)["error"]


def test_tokens_of_the_old_place_are_listed_and_moved_only_when_asked(call: Any, tmp_path: Path) -> None:
    secret = call("token", "create", "--name", "ci", "--scopes", "read").stdout.strip()
    put_back_tokens(tmp_path / "qo.db")
    assert "qo migrate --tokens" in call.error("token", "list", code=2)["error"]
    for options in ((), ("--check",)):
        found = call.json("migrate", *options, code=1)
        assert (found["old_tokens"], [token["name"] for token in found["tokens"]]) == ("found", ["ci"])
    shown = call("migrate", code=1).stdout
    assert "not accepted" in shown and "ci  read" in shown and secret not in shown
    call.error("migrate", "--check", "--tokens", "move", code=2)
    assert call.json("migrate", "--tokens", "move")["old_tokens"] == "moved"
    assert [token["name"] for token in call.json("token", "list")] == ["ci"]
    assert "old_tokens" not in call.json("migrate")
    put_back_tokens(tmp_path / "qo.db")
    assert call.json("migrate", "--tokens", "discard")["old_tokens"] == "discarded"
    assert call.json("token", "list") == []


def put_back_tokens(path: Path) -> None:
    """Where an earlier version kept them."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE notes SET name = 'tokens' WHERE name = 'admin/tokens'")


@pytest.mark.parametrize("store", ["memory://", "file:///nowhere/at/all"])
def test_a_store_without_tables_has_nothing_to_migrate(call: Any, store: str) -> None:
    assert call.json("migrate", store)["current"] is True
    assert "nothing to migrate" in call("migrate", store, "--check").stdout


def test_a_server_that_is_away_is_an_error_of_the_store(call: Any) -> None:
    assert "cannot be reached" in call.error("migrate", "postgresql://me:sesame@127.0.0.1:1/x", code=5)["error"]
    assert "sesame" not in call("migrate", "postgresql://me:sesame@127.0.0.1:1/x", code=5).output


def test_postgres_is_migrated_by_many_at_once(processes: Any, postgres: PostgresServer, url: str) -> None:
    started = [processes.start("migrate", url, "--json") for _ in range(TOGETHER)]
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, processes.log(process)
        assert '"current": true' in out or '"current":true' in out
    with psycopg.connect(postgres.url()) as db:
        (steps,) = db.execute("SELECT array_agg(version ORDER BY version) FROM test.schema_version").fetchone() or ()
    assert steps == list(range(1, max(steps) + 1))


def test_an_outdated_postgres_is_reported_and_not_changed(call: Any, postgres: PostgresServer, url: str) -> None:
    assert call.json("migrate", url, "--check", code=1)["version"] == 0
    with psycopg.connect(postgres.url()) as db:
        assert db.execute("SELECT FROM pg_namespace WHERE nspname = 'test'").fetchone() is None
    assert call.json("migrate", url)["version"] > 0
    assert call.json("migrate", url, "--check")["current"] is True
