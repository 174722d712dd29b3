#!/bin/sh
# Installs a PySpark from PyPI below target/spark, once, and prints its SPARK_HOME: install.sh VERSION
# `oldest` is the version that the adapter is compiled against.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 VERSION" >&2; exit 2; }
version=$1
[ "$version" != oldest ] || version=3.5.9
home=$(cd "$(dirname "$0")/../.." && pwd)/target/spark/$version
# The version file is written last, so a partial installation is repeated. Two may start at the same time: the second one
# waits.
mkdir -p "$home"
exec 9> "$home/lock"
flock 9
if [ "$(cat "$home/version" 2>/dev/null)" != "pyspark==$version" ]; then
    python3 -m venv --clear "$home/venv" >/dev/null || { echo "python3 has no venv (Debian: python3-venv)" >&2; exit 1; }
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check "pyspark==$version" >&2
    echo "pyspark==$version" > "$home/version"
fi
echo "$home"/venv/lib/python3*/site-packages/pyspark
