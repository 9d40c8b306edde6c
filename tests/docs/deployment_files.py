"""For `make deployment`: validates the files in docs/deployment.md with hadolint and the schemas of Kubernetes."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("1.30.0", "1.33.0", "1.37.0")  # `preStop: sleep` came with 1.30
MANIFESTS = ("worker.yaml", "server.yaml")
_FILE = re.compile(r"^```\w+\n(# (\S+)\n.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for text, name in _FILE.findall(page):
            (Path(folder) / Path(name).name).write_text(text, "utf-8")
        commands = [["kubernetes-validate", "-k", version, "--strict", *MANIFESTS] for version in VERSIONS]
        commands.append(["hadolint", "--failure-threshold", "info", "Dockerfile"])
        codes = [subprocess.run(command, cwd=folder, check=False).returncode for command in commands]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
