#!/bin/sh
# Compiles the adapter against the jars of a Spark: build.sh SPARK_HOME [posse-spark.jar]
# Needs a JDK 17 or later, and nothing else. A jar that was compiled against Spark 3.5 serves all later ones. The same
# sources and SOURCE_DATE_EPOCH give the same bytes.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 SPARK_HOME [JAR]" >&2; exit 2; }
jars=$1/jars
jar=${2:-posse-spark.jar}
src=$(dirname "$0")/src/dev/posse/spark
command -v javac >/dev/null || { echo "javac is missing: install a JDK, 17 or later" >&2; exit 2; }
path=''
# Only the jars that are needed: manifests of others name jars that do not exist, and -Xlint warns.
for name in spark-core spark-launcher spark-kubernetes spark-common-utils spark-network-common scala-library kubernetes- jackson- slf4j-api jsr305; do
  for file in "$jars/$name"*.jar; do
    if [ -e "$file" ]; then path=$path:$file; fi
  done
done
case $path in
*/spark-kubernetes_2.12-* | */spark-kubernetes_2.13-*) ;;
*)
  echo "$jars has no spark-kubernetes_2.*.jar: is this a Spark with Kubernetes, 3.5 or later?" >&2
  exit 2
  ;;
esac
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
javac -Xlint:all -Werror --release 17 -cp "${path#:}" -d "$classes" "$src"/*.java
# The driver's log says if the posse that runs is another one.
sed -n '/^version = "/{s/.*"\(.*\)".*/\1/p;q}' "$(dirname "$0")/../../Cargo.toml" > "$classes/dev/posse/spark/version"
# Replaces the jar in one step, because a driver may be reading it.
jar --create --file "$classes.jar" --date "$(date -u -d "@${SOURCE_DATE_EPOCH:-315619200}" +%Y-%m-%dT%H:%M:%SZ)" \
  -C "$classes" .
mv "$classes.jar" "$jar"
