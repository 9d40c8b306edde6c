#!/bin/sh
# Writes the files of this folder: every package that `make` installs, with the hashes of all its files, for all platforms.
# Versions are those of constraints.txt. A package that is not there yet gets its newest version: add it. uv, and the two test servers
# below, have files of their own, because what they pin is not what qo uses.
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
echo uv | compile uv.txt -
