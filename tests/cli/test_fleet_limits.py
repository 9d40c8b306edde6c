"""`qo limit` across all workers."""

from tests.cli.conftest import Qo


def test_fleet_limits_are_set_shown_and_removed(call: Qo) -> None:
    call("submit", "--type", "crawl", "--input", "{}")
    assert "no limits across all workers" in call("limit").stdout
    assert (
        "type crawl: at most 5 at a time (set here), 1 task waiting"
        in call("limit", "--type", "crawl", "--concurrency", "5").stdout
    )
    call("limit", "--queue", "mail", "--starts", "100", "--per", "1m")
    call("limit", "--key", "customer=Zoë & Co", "--concurrency", "1")
    assert "key:customer=Zo%C3%AB%20%26%20Co" in [limit["scope"] for limit in call.json("limit")]
    call("limit", "--key", "customer=Zoë & Co", "--remove")
    call("limit", "--key", "customer_id=42", "--concurrency", "1", "--starts", "2")
    shown = call("limit").stdout
    assert "queue mail: at most 100 starts in 60 s (set here)" in shown
    assert "key customer_id=42: at most 1 at a time and 2 starts in 1 s (set here)" in shown
    assert "type crawl: at most 5 at a time across all workers" in call("resume").stdout
    limits = call.json("limit", "--type", "crawl", "--remove")
    assert [limit["scope"] for limit in limits] == ["queue:mail", "key:customer_id=42"]


def test_a_fleet_limit_that_means_nothing_is_refused(call: Qo) -> None:
    call("submit", "--type", "crawl", "--input", "{}")
    for words in (
        ("--concurrency", "5"),
        ("--type", "a", "--queue", "b", "--concurrency", "5"),
        ("--type", "a", "--concurrency", "0"),
        ("--key", "customer", "--concurrency", "1"),
        ("--type", "a", "--starts", "1", "--per", "0"),
        ("--queue", "a"),
        ("--queue", ""),
        ("--type", "", "--concurrency", "1"),
        ("5", "--type", ""),
        ("5", "--type", "a", "--concurrency", "1"),
        ("--max-types", "5", "--type", "a", "--concurrency", "1"),
        ("--per", "5"),
        ("5", "--per", "5"),
        ("--type", "a", "--concurrency", "1", "--per", "5"),
        ("--type", "a", "--remove", "--concurrency", "1"),
    ):
        assert call.error("limit", *words, code=2)["error"]
    assert call.json("limit") == []
    assert call.json("resume")["rate_limit"] == 0
