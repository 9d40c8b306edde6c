#!/bin/sh
# One virtual environment per peer, because their requirements conflict
# (arq wants redis<6, SAQ redis<8, taskiq-redis redis>=8).
# Usage: ./setup_envs.sh <folder> [peer ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
envs=${1:?usage: setup_envs.sh <folder> [peer ...]}
shift
mkdir -p "$envs"
[ $# -gt 0 ] || set -- $(cd "$here/requirements" && { ls *.txt | sed 's/\.txt$//'; echo qo; })
for peer in "$@"; do
    [ -d "$envs/$peer" ] || "${PYTHON:-python3}" -m venv "$envs/$peer"
    if [ "$peer" = qo ]; then
        "$envs/$peer/bin/pip" install -q -e "$here/..[all]"
        echo "$peer ready"
        continue
    fi
    # jqueue declares Python >= 3.12 but its code runs on 3.11 unchanged
    "$envs/$peer/bin/pip" install -q --ignore-requires-python -r "$here/requirements/$peer.txt"
    echo "$peer ready"
done
