# Adds up the squares of the numbers below 10,000,000 with mpirun, and begins again if an executor is lost.
ranks=$1 sums=${TMPDIR:-/tmp}/sums.$$
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # in containers
hosts() {
    "$POSSE_EXE" status --json | python3 -c 'import json, sys; print(",".join(
        executor["pod"] for executor in json.load(sys.stdin)["executors"] if executor["state"] == "running"))'
}
until
    "$POSSE_EXE" wait --running "$ranks" || exit
    mpirun --host "$(hosts)" --mca plm_rsh_agent "$POSSE_EXE exec --shell" --mca plm_rsh_no_tree_spawn 1 \
        python3 examples/mpi/rank.py >"$sums"
do
    echo "begin again" && sleep 1
done
python3 -c 'import sys; rows = [line.split() for line in sys.stdin]; print("ranks", len(rows), "executors",
    len({row[2] for row in rows}), "sum", sum(int(row[1]) for row in rows))' <"$sums"
rm "$sums"
