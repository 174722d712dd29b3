# Adds up the squares of the numbers below 10,000,000 with mpirun, and begins again if an executor is lost, only then.
ranks=$1 sums=${TMPDIR:-/tmp}/sums.$$
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # in containers
LOSS_SECONDS_MAX=30 # posse has seen a loss within this time
hosts() {
    "$POSSE_EXE" status --json | python3 -c 'import json, sys; print(",".join(
        executor["pod"] for executor in json.load(sys.stdin)["executors"] if executor["state"] == "running"))'
}
# mpirun can end before posse has seen the loss that ended it. The executors that follow have other names.
are_lost() {
    for _ in $(seq "$LOSS_SECONDS_MAX"); do
        [ "$(hosts)" = "$used" ] || return 0
        sleep 1
    done
    return 1
}
until
    "$POSSE_EXE" wait --running "$ranks" || exit
    used=$(hosts)
    echo "begin"
    mpirun --host "$used" --mca plm_rsh_agent "$POSSE_EXE exec --shell" --mca plm_rsh_no_tree_spawn 1 \
        python3 examples/mpi/rank.py >"$sums"
do
    are_lost || { echo "mpirun failed, and no executor is lost" >&2; exit 1; }
done
python3 -c 'import sys; rows = [line.split() for line in sys.stdin]; print("ranks", len(rows), "executors",
    len({row[2] for row in rows}), "sum", sum(int(row[1]) for row in rows))' <"$sums"
rm "$sums"
