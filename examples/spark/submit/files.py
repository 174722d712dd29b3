"""Finds what spark-submit brought along in the working directory, in the driver and in an executor: files.py RESULT

`data.txt` is of --files, `part` of --py-files, and the Python of both is `./environment/bin/python` of --archives.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def seen(_=None):
    import part

    return [Path("data.txt").read_text(encoding="utf-8"), part.NAME, os.environ["ENVIRONMENT"]]


spark = SparkSession.builder.getOrCreate()
result = seen() + spark.sparkContext.parallelize([0], 1).map(seen).first()
spark.stop()
Path(sys.argv[1]).write_text(" ".join(result), encoding="utf-8")
