#!/bin/sh
# Runs the adapter's own tests, without a running Spark: test.sh SPARK_HOME posse-spark.jar
set -eu
[ $# -eq 2 ] || { echo "usage: $0 SPARK_HOME JAR" >&2; exit 2; }
path=$2:$1/jars/*
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
# Without -Xlint:path: manifests of some of Spark's jars name jars that do not exist.
javac -Xlint:all,-path -Werror --release 17 -cp "$path" -d "$classes" "$(dirname "$0")"/test/dev/posse/spark/*.java
java -ea -cp "$classes:$path" dev.posse.spark.Tests
