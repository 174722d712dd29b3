#!/bin/sh
# Makes the contents of an image without a registry: image.sh FOLDER SPARK_HOME POSSE_SPARK_JAR
# FOLDER gets a Debian with Java and Python (debootstrap, as root), the parts of a PySpark from PyPI that its
# applications need, the adapter and the applications of this folder. The image needs SPARK_HOME=/opt/spark, the
# user 185:0 and the entry point /opt/entrypoint.sh. With a registry use the Dockerfile.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 FOLDER SPARK_HOME POSSE_SPARK_JAR" >&2; exit 2; }
root=$1
here=$(cd "$(dirname "$0")" && pwd)
spark=$root/opt/spark
[ -e "$root/etc/debian_version" ] ||
    debootstrap --variant=minbase --include=openjdk-17-jre-headless,python3 bookworm "$root"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man \
    "$root"/usr/share/locale "$spark" "$root/opt/app"
mkdir -p "$spark" "$root/opt/app"
cp -r "$2/bin" "$2/jars" "$2/python" "$spark/"
# What Spark's core, SQL and streaming do not load.
for part in arpack blas breeze cats-kernel datanucleus derby hive- lapack scala-compiler spark-connect \
    spark-graphx spark-hive spark-mllib spire; do
    rm -f "$spark/jars/$part"*.jar
done
cp "$3" "$spark/jars/posse-spark.jar"
cp "$here/../../../adapters/spark/posse-spark-submit" "$spark/bin/"
cp "$here/../../../adapters/spark/executor.sh" "$root/opt/entrypoint.sh"
cp "$here/../../../adapters/spark/decom.sh" "$root/opt/"
cp "$here/../wordcount.py" "$here/streaming.py" "$root/opt/app/"
chmod -R a+rX "$root/opt"
chmod a+x "$root/opt/entrypoint.sh" "$root/opt/decom.sh" "$spark/bin/posse-spark-submit"
grep -q '^spark:' "$root/etc/passwd" || echo 'spark:x:185:0::/opt/spark:/bin/sh' >> "$root/etc/passwd"
