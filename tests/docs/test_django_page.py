"""The code and the commands of the page about Django, in a new project."""

import re
import sys
from pathlib import Path

import django
import pytest

from tests.docs.test_documents import ROOT, run

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""
SET_UP = "import os, django\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\ndjango.setup()\n"
OWN_SETTINGS = "\nSECRET_KEY = 'not a secret'\nUSE_TZ = True\nINSTALLED_APPS.append('shop')\n"
READ_ALL = "\nfor line in open('ids.txt'):\n    print(send_receipt.get_result(line.strip()).return_value)\n"
FRAMEWORK = ("from django.tasks import task  # with Django 5.2: from django_tasks import task", "django_tasks")


def page() -> tuple[dict[str, str], list[str]]:
    """The Python blocks by their first lines, and the commands without `pip`."""
    blocks = BLOCK.findall((ROOT / "docs" / "django.md").read_text())
    code = {text.splitlines()[0].removeprefix("# "): text for kind, text in blocks if kind == "python"}
    lines = [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    return code, [line.partition("  #")[0].strip() for line in lines if line.startswith("python ")]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    code, _ = page()
    assert list(code) == ["settings.py", "shop/tasks.py", "anywhere"]
    tasks, (import_, older) = code["shop/tasks.py"], FRAMEWORK
    assert import_ in tasks
    if django.VERSION < (6,):
        tasks = tasks.replace(import_, f"from {older} import task")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(tasks)
    (tmp_path / "settings.py").write_text(code["settings.py"] + OWN_SETTINGS)
    (tmp_path / "manage.py").write_text(MANAGE)
    keep_id = "\nopen('ids.txt', 'a').write(result.id + '\\n')\nprint(result.status)\n"
    (tmp_path / "submit.py").write_text(SET_UP + code["anywhere"] + keep_id)
    (tmp_path / "read.py").write_text(SET_UP + "from shop.tasks import send_receipt\n" + READ_ALL)
    return tmp_path


def test_the_page_about_django_is_true(project: Path) -> None:
    _, commands = page()
    assert len(commands) == 3
    for command in commands:
        submitted = run([sys.executable, "submit.py"], project)
        assert (submitted.returncode, submitted.stdout) == (0, "READY\n"), submitted.stderr
        drained = command if "--drain" in command else command.replace("qo_worker", "qo_worker --drain")
        ended = run(["bash", "-c", drained], project)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    results = run([sys.executable, "read.py"], project)
    assert results.stdout == "sent the receipt of order 42\n" * len(commands), results.stderr
