"""One task: its path, its lease, its payload as a tree, its error, its attempts, its versions and what differs."""

import re

from playwright.sync_api import expect

from tests.dashboard.seen import Seen


def test_a_task_that_stumbled_and_failed(seen: Seen):
    task = seen.queue.submit("stumble", {"reason": "remote host hung up"}, max_retries=1)
    seen.queue.until(task, "failed")
    seen.go(f"#/tasks/{task}")
    page = seen.page
    expect(page.locator("h1")).to_contain_text("stumble")
    machine = page.locator("svg.machine")
    expect(machine.locator(".node.failed")).to_have_class(re.compile("now"))
    expect(machine.locator(".edge.taken")).to_have_count(3)  # claimed, tried again, given up
    expect(machine.locator(".times").first).to_have_text(re.compile("2"))
    expect(page.locator(".error-title")).to_have_text("RuntimeError: remote host hung up")
    expect(page.locator("pre.trace")).to_contain_text("raise RuntimeError(reason)")
    expect(page.locator(".timeline .moment")).to_have_count(3)
    expect(page.locator(".timeline")).to_contain_text(re.compile("retry after"))
    expect(page.locator(".timeline")).to_contain_text("worker-a")
    page.get_by_label("From version").select_option("1")
    page.get_by_label("To version").select_option("3")
    diff = page.locator(".diff")
    expect(diff.locator("dt", has_text=re.compile("^failures$"))).to_be_visible()
    expect(diff.locator(".gone", has_text=re.compile("0$")).first).to_be_visible()
    expect(diff.locator(".new", has_text="RuntimeError: remote host hung up").first).to_be_visible()
    seen.picture("task-failed")


def test_a_running_task_shows_its_lease_and_is_cancelled(seen: Seen):
    held = seen.queue.file("held")
    task = seen.queue.submit("hold", {"file": str(held)})
    seen.queue.until(task, "running")
    seen.go(f"#/tasks/{task}")
    page = seen.page
    expect(page.locator("[data-lease]")).to_contain_text(re.compile(r"Leased by worker-a, expires in \d+ s"))
    expect(page.locator(".fuse")).to_be_visible()
    before = page.locator("[data-lease] time").inner_text()
    expect(page.locator("[data-lease] time")).not_to_have_text(before)  # it counts down by itself
    seen.picture("task-running")
    page.get_by_role("button", name="Cancel").click()
    seen.dialog("Cancel")
    seen.told("1 task cancelled.")
    expect(page.locator("h1 .badge")).to_have_text("cancelled")
    held.unlink()


def test_it_is_replayed_archived_and_deleted(seen: Seen):
    task = seen.queue.submit("explode", {"reason": "no"}, max_retries=0)
    seen.queue.until(task, "failed")
    seen.go(f"#/tasks/{task}")
    page = seen.page
    page.get_by_role("button", name="Replay").click()
    seen.told("1 task replayed.")
    expect(page.locator("svg.machine .edge.taken")).to_have_count(3)  # and back to the start
    expect(page.locator("h1 .badge")).to_have_text("failed")
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("h1 .badge")).to_have_text("archived")
    expect(page.get_by_role("button", name="Archive")).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    seen.dialog("Delete")
    expect(page.locator("h1")).to_have_text("Tasks")
    seen.go(f"#/tasks/{task}")
    expect(page.locator("[data-state=error]")).to_contain_text("Task not found")
    seen.picture("task-not-found")


def test_payload_and_result_are_trees(seen: Seen):
    payload = {
        "name": "Ada",
        "big": 9007199254740993,
        "list": list(range(250)),
        "long": "x" * 900,
        "deep": {"er": {"still": {"more": True}}},
    }
    task = seen.queue.submit("greet", payload)
    seen.queue.until(task, "completed")
    seen.go(f"#/tasks/{task}")
    page = seen.page
    tree = page.locator('[data-section="payload"] .tree')
    expect(tree).to_contain_text("9007199254740993")  # not ...992
    expect(tree.locator("summary", has_text="list")).to_contain_text("250 items")
    expect(tree).not_to_contain_text("more: true")
    expect(tree.get_by_role("button", name="all 900 characters")).to_be_visible()
    page.locator('[data-section="payload"]').get_by_role("button", name="Expand").click()
    expect(tree).to_contain_text("more: true")
    expect(tree.get_by_role("button", name="150 more…")).to_be_visible()
    tree.get_by_role("button", name="150 more…").click()
    expect(tree.get_by_role("button", name="50 more…")).to_be_visible()
    tree.get_by_role("button", name="all 900 characters").click()
    expect(tree).to_contain_text("x" * 900)
    page.locator('[data-section="payload"]').get_by_role("button", name="Collapse").click()
    expect(tree.get_by_text("name")).to_be_hidden()
    expect(page.locator('[data-section="result"]')).to_contain_text('"Hello Ada"')
    page.get_by_role("button", name="Copy the id").click()
    seen.told("Copied.")


def test_an_open_page_follows_the_task(seen: Seen):
    held = seen.queue.file("followed")
    task = seen.queue.submit("hold", {"file": str(held)})
    seen.go(f"#/tasks/{task}")
    expect(seen.page.locator("h1 .badge")).to_have_text("running")
    held.unlink()
    expect(seen.page.locator("h1 .badge")).to_have_text("completed")
    expect(seen.page.locator('[data-section="result"]')).to_contain_text("let go")


def test_a_text_cannot_reverse_its_direction(seen: Seen):
    task = seen.queue.submit("stumble", {"reason": "invoice\u202egnp.exe"}, max_retries=0)
    seen.queue.until(task, "failed")
    seen.go(f"#/tasks/{task}")
    expect(seen.page.locator(".error-title")).to_have_text("RuntimeError: invoice\\u202egnp.exe")
    expect(seen.page.locator("main")).not_to_contain_text("\u202e")
