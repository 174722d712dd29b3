#!/bin/sh
# Installs Dask into target/dask, an environment of its own, and runs and checks the example there
# (run.py). A second run installs nothing. Exit code 77: Dask cannot be installed here.
#
#   run.sh [SEED]       SEED: see run.py
set -eu
cd "$(dirname "$0")/../.."
to=$PWD/target/dask
wanted=$(cat examples/dask/requirements.txt examples/dask/run.sh | cksum)

cannot() {
    echo "dask: NOT TESTED: $*" >&2
    exit 77
}

if [ "$(cat "$to/installed" 2>/dev/null)" != "$wanted" ]; then
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || cannot "no python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || cannot "python3 is older than 3.11"
    rm -rf "$to"
    "$python" -m venv "$to" >/dev/null || cannot "python3 has no venv (Debian: python3-venv)"
    "$to/bin/pip" install --quiet --disable-pip-version-check -r examples/dask/requirements.txt ||
        cannot "pip cannot install Dask"
    echo "$wanted" >"$to/installed"
fi
exec "$to/bin/python" examples/dask/run.py "$@"
