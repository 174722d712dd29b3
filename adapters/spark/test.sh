#!/bin/sh
# Runs the adapter's own tests, without a running Spark: test.sh SPARK_HOME posse-spark.jar
set -eu
[ $# -eq 2 ] || { echo "usage: $0 SPARK_HOME JAR" >&2; exit 2; }
here=$(dirname "$0")
path="$2:$1/jars/*"
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
# Without -Xlint:path: manifests of some of Spark's jars name jars that do not exist.
javac -Xlint:all,-path -Werror --release 17 -cp "$path" -d "$classes" "$here"/test/dev/posse/spark/*.java
# What bin/spark-submit opens for Spark under Java 17.
java -ea --add-exports java.base/sun.nio.ch=ALL-UNNAMED "-Dposse.readme=$here/README.md" -cp "$classes:$path" dev.posse.spark.Tests
