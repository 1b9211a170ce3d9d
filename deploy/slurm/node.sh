#!/usr/bin/env bash
# Ray on one node of the job, started by orchestrator.sbatch: the head on the first, with the driver next to it.
set -uo pipefail
first=$((RAY_PORTS + SLURM_NODEID % 6 * 8)) # two nodes may be one machine
# Ray opens its own folder to all users of the machine, its sockets too: it lies in one that they cannot enter.
rm -rf "/tmp/ray-$SLURM_JOB_ID-$SLURM_NODEID-"* # of a job that was killed, and requeued
session=$(mktemp -d "/tmp/ray-$SLURM_JOB_ID-$SLURM_NODEID-XXXXXX") || exit
role=("--address=$RAY_ADDRESS")
if [ "$SLURM_NODEID" = 0 ]; then
    role=(
        --head "--port=$RAY_PORTS" "--node-ip-address=${RAY_ADDRESS%:*}"
        --dashboard-host=127.0.0.1 "--dashboard-port=$((first + 1))" "--ray-client-server-port=$((first + 2))"
    )
fi
# Whether Ray's head listens. A connection to a machine that is down is given up after 10 seconds.
head_listens() { timeout 10 bash -c ": </dev/tcp/${RAY_ADDRESS%:*}/$RAY_PORTS" 2>/dev/null; }
reached=
for _ in $(seq 60); do # Ray gives up within seconds where there is no head yet
    [ "$SLURM_NODEID" != 0 ] || { reached=yes; break; }
    if head_listens; then reached=yes; break; fi
    sleep 5
done
cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
# MiB of --mem or --mem-per-cpu. Ray sees the memory of the machine, not that of the job; 0 is all that the machine has.
memory=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * cpus))}
limits=()
[ "$memory" = 0 ] || limits=("--memory=$((memory * 1048576 / 10 * 7))" "--object-store-memory=$((memory * 1048576 / 10 * 2))")
# A cancelled job has 30 seconds (KillWait): what Ray has not ended by itself in 20 is ended here.
ended=
ray=
# Slurm signals Ray's GCS too: a drained node would wait 30 seconds for its answer, the time until Slurm kills (KillWait).
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
end() {
    ended=yes
    kill -TERM "$ray" 2>/dev/null
    for _ in $(seq 20); do
        sleep 1
        kill -0 "$ray" 2>/dev/null || return
    done
    pkill -KILL -f "$session/"
}
trap end TERM INT
# Ray gives its start 30 seconds, which a busy machine or a cold file system may exceed. Without a head it waits for minutes.
for _ in 1 2 3; do
    began=$SECONDS
    ray start --block --disable-usage-stats "${role[@]}" "${limits[@]}" "--temp-dir=$session/ray" \
        "--num-cpus=$cpus" "--num-gpus=${SLURM_GPUS_ON_NODE:-0}" \
        "--node-manager-port=$((first + 3))" "--object-manager-port=$((first + 4))" \
        "--dashboard-agent-listen-port=$((first + 5))" "--dashboard-agent-grpc-port=$((first + 6))" \
        "--runtime-env-agent-port=$((first + 7))" --min-worker-port=0 --max-worker-port=0 &
    ray=$!
    # In bash 5.2 `wait` may miss a process that ends while a trap runs.
    while kill -0 "$ray" 2>/dev/null; do sleep 1; done
    wait "$ray"
    code=$?
    rm -rf "$session/ray"
    [ "$code" != 0 ] && [ -n "$reached" ] && [ -z "$ended" ] && [ $((SECONDS - began)) -lt 180 ] || break
    [ "$SLURM_NODEID" = 0 ] || head_listens || break
done
rm -rf "$session"
# With --no-kill Slurm keeps a job whose first node is lost, and with it the driver: the next node sends it back. A head
# that never started would not start the next time either.
if [ -n "$reached" ] && [ -z "$ended" ] && [ "$SLURM_NODEID" = 1 ] && ! head_listens; then
    scontrol requeue "$SLURM_TASK"
fi
exit "$code"
