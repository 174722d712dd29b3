"""Counts the words of the texts below FOLDER, with a shuffle, and writes "count word" lines to OUT."""

import glob
import re
import sys

from pyspark.sql import SparkSession

folder, out = sys.argv[1:]
spark = SparkSession.builder.appName("wordcount").getOrCreate()
lines = []
for path in sorted(glob.glob(folder + "/*.txt")):
    with open(path, encoding="latin-1") as text:
        lines += text.read().split("\n")


# The definition of a word is that of examples/wordcount/words.sh.
def words(line):
    found = re.split(r"[^a-z']+", line.lower())
    return [word for word in (part.strip("'") for part in found) if word]


counts = spark.sparkContext.parallelize(lines, 8).flatMap(words).map(lambda word: (word, 1))
counts = counts.reduceByKey(lambda a, b: a + b, 6).collect()
with open(out, "w", encoding="latin-1") as file:
    for word, count in sorted(counts):
        file.write(f"{count} {word}\n")
spark.stop()
