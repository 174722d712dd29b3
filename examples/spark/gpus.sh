#!/bin/sh
# Spark's discovery script: prints the addresses of this executor's GPUs. This one makes one up. A real
# one asks nvidia-smi, as Spark's examples/src/main/scripts/getGpusResources.sh does.
echo '{"name": "gpu", "addresses": ["made-up-0"]}'
