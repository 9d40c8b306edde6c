"""Hooks of MkDocs: pages that are not in docs/, and links as they are on the site.

Documents link to each other as files of the repository, so that they can be read there. On the site, the documents of
the root and of examples/ are pages too, and the Python API has pages that mkdocstrings fills from the code.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

# Document of the repository: page of the site.
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.txt",
    "examples/README.md": "examples.md",
    "bench/README.md": "bench.md",
}
FOLDERS = {"docs/decisions": "decisions/index.md", "bench": "bench.md", "examples": "examples.md"}

# Page of the Python API: its title, an introduction, and the objects on it. `!` shows members without a docstring too.
REFERENCE: dict[str, tuple[str, str, list[str]]] = {
    "app": (
        "Apps and tasks",
        "Each method that blocks has an async form with the prefix `a`: `await send_email.aenqueue(...)`.",
        [
            "qo.App",
            "qo.TaskFunction",
            "qo.SyncTaskHandle",
            "!qo.tasks.HandlerOptions",
            "!qo.RetryPolicy",
            "!qo.Unique",
            "!qo.Limit",
        ],
    ),
    "handlers": (
        "Inside a handler",
        "What a handler can ask for, report and raise.",
        [
            "qo.current_task",
            "!qo.RunningTask",
            "qo.Retry",
            "qo.Fail",
            "qo.Cancelled",
            "qo.current_worker",
            "qo.WorkerContext",
        ],
    ),
    "hooks": (
        "Hooks",
        "The decorators are methods of `App` and of `tq`. See [hooks](../hooks.md).",
        ["qo.hooks.HookDecorators", "!qo.TaskEvent", "!qo.WorkerEvent", "qo.sentry.install"],
    ),
    "schedules": (
        "Schedules",
        "`app.schedules`, and `client.schedules` of both clients. See [schedules](../schedules.md).",
        [
            "qo.sync_schedules.SyncSchedules",
            "!qo.client.schedules.ScheduleOptions",
            "!qo.client.schedules.TimingOptions",
            "!qo.ScheduleInfo",
        ],
    ),
    "workflows": (
        "Workflows",
        "`app.workflow`, `app.get_workflow` and `task.s`. See [workflows](../workflows.md).",
        [
            "qo.Workflow",
            "qo.Signature",
            "qo.chain",
            "qo.group",
            "qo.WorkflowRun",
            "!qo.client.workflow_view.WorkflowView",
            "!qo.client.workflow_view.WorkflowNodeView",
            "qo.current_workflow",
            "qo.workflow_additions.CurrentWorkflow",
        ],
    ),
    "batches": (
        "Batches",
        "`qo.batch` is another name of `qo.Batch`. See [progress](../progress.md).",
        ["qo.Batch", "!qo.client.batches.BatchProgress"],
    ),
    "client": (
        "The client for async code",
        "`async with qo.connect(url) as client:` works without an app and without decorators.",
        [
            "qo.connect",
            "qo.Client",
            "qo.TaskHandle",
            "!qo.TaskOptions",
            "!qo.Settings",
            "!qo.PromotionTimes",
            "qo.Producer",
            "qo.Consumer",
            "qo.HeartbeatManager",
            "!qo.QueueState",
        ],
    ),
    "sync": (
        "The client for other code",
        "Every method of [`Client`](client.md), with the same arguments, blocking.",
        ["qo.sync.connect", "qo.sync.SyncClient"],
    ),
    "tq": (
        "Tasks by name: tq",
        '`from qo import tq`; `tq` is a `TaskQueue`, and `tq("crawl")` is a `TaskType`.',
        ["qo.task_queue.TaskQueue", "qo.task_queue.TaskType"],
    ),
    "model": (
        "Stored tasks",
        "What a store returns, and what it is asked for.",
        [
            "!qo.Task",
            "!qo.Status",
            "!qo.model.FailureKind",
            "!qo.Event",
            "!qo.Filter",
            "!qo.PendingKind",
            "qo.cursor",
            "qo.decode",
            "!qo.Explanation",
        ],
    ),
    "stores": (
        "Storage and encryption",
        "See [storage](../storage.md), [one database in a bucket](../s3-store.md) and [encryption](../encryption.md).",
        [
            "qo.S3Store",
            "qo.ObjectStorage",
            "qo.S3Storage",
            "qo.GCSStorage",
            "qo.InMemoryStorage",
            "qo.LocalFileSystemStorage",
            "qo.Encrypted",
        ],
    ),
    "errors": ("Errors", "", ["qo.errors"]),
    "testing": (
        "Testing",
        "See [testing](../testing.md), and [adding an engine](../contributing.md) for the contracts.",
        [
            "qo.testing.AppTester",
            "!qo.testing.Attempt",
            "qo.testing.ManualClock",
        ],
    ),
    "web": ("The server in your application", "", ["qo.web.create_app", "!qo.web.WebSettings"]),
}
# Further options of mkdocstrings.
OPTIONS = {
    "qo.App": {"inherited_members": True},
    "qo.TaskFunction": {"inherited_members": True, "merge_init_into_class": False},
    "qo.Client": {
        "filters": ["!^_", "!_directly$", "!_duplicate$", "!_damaged$", "!_change$"],
        "merge_init_into_class": False,  # programs do not create it themselves; the same holds below
    },
    "qo.Producer": {"merge_init_into_class": False},
    "qo.Consumer": {"merge_init_into_class": False},
    "qo.S3Store": {"merge_init_into_class": False},
    "qo.SyncTaskHandle": {"merge_init_into_class": False},
    "qo.sync.SyncClient": {"merge_init_into_class": False},
    "qo.sync_schedules.SyncSchedules": {"merge_init_into_class": False},
    "qo.task_queue.TaskType": {"merge_init_into_class": False},
    "qo.testing.AppTester": {"merge_init_into_class": False},
    "qo.Filter": {"members": False},
    "qo.errors": {"show_root_heading": False, "show_root_toc_entry": False},
}

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^( *)(```.*?^\1```)$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    nav: list[Any] = config.nav or []
    reference = {"Python API": ["reference/index.md", *(f"reference/{name}.md" for name in REFERENCE)]}
    decisions = {"Decisions": ["decisions/index.md", *(f"decisions/{path.name}" for path in _decisions())]}
    config.nav = [*nav[:-1], reference, {"Project": [*nav[-1]["Project"], "bench.md", decisions]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in DOCUMENTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "decisions/index.md", content=_list_of_decisions()))
    files.append(File.generated(config, "reference/index.md", content=_list_of_reference()))
    for name in REFERENCE:
        files.append(File.generated(config, f"reference/{name}.md", content=reference_page(name)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the names count
    """Let links lead to pages of the site. Code is left as it is."""
    source = source_of(page.file.src_uri)
    if source is None:
        return markdown
    parts = _FENCE.split(markdown)  # text, indentation, block, text, ...
    parts[::3] = [
        _LINK.sub(lambda match: match[1] + site_link(match[2], source, page.file.src_uri) + match[3], part)
        for part in parts[::3]
    ]
    return "".join(parts)


def source_of(page: str) -> str | None:
    """The document of the repository from which a page comes, or None if it was generated."""
    if page == "decisions/index.md" or page.startswith("reference/"):
        return None
    return next((source for source, name in DOCUMENTS.items() if name == page), f"docs/{page}")


def site_link(link: str, source: str, page: str) -> str:
    """A link in a document, relative to its page."""
    target, hash_, anchor = link.partition("#")
    if "://" in link or not target or link.startswith("mailto:"):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    home = DOCUMENTS.get(path) or FOLDERS.get(path) or path.removeprefix("docs/")
    return posixpath.relpath(home, posixpath.dirname(page) or ".") + hash_ + anchor


def reference_page(name: str) -> str:
    title, introduction, objects = REFERENCE[name]
    blocks = []
    for each in objects:
        path = each.removeprefix("!")
        options = {"show_if_no_docstring": each != path, **OPTIONS.get(path, {})}
        blocks.append(f"::: {path}\n    options: {json.dumps(options)}\n")
    return f"# {title}\n\n{introduction}\n\n" + "\n".join(blocks)


def _list_of_reference() -> str:
    rows = [f"- [{title}]({name}.md)" for name, (title, _, _) in REFERENCE.items()]
    return (
        "# Python API\n\nThe signatures and texts come from the code. Names that are not on these pages may change.\n\n"
        + "\n".join(rows)
    )


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("*.md"))


def _list_of_decisions() -> str:
    titles = {path.name: path.read_text("utf-8").partition("\n")[0].removeprefix("# ") for path in _decisions()}
    rows = [f"- [{title.replace('. ', chr(92) + '. ', 1)}]({name})" for name, title in titles.items()]
    return (
        "# Decisions\n\nDifficult choices: the context, the decision, its consequences, and what was rejected.\n\n"
        + "\n".join(rows)
    )
