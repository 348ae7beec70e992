#!/usr/bin/env bash
# Two "hosts" on one Linux machine, as network namespaces with a slow link between them; torchrun starts two processes on each.
# Needs root, `ip` and `tc` (iproute2). RATE and DELAY are the link's; ELASTIC=1 lets the hosts find each other (c10d).
#
#   RATE=100mbit DELAY=2ms examples/cluster/hosts.sh examples/cluster/train.py --policy cadence
set -euo pipefail
[ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed 1d; exit 2; }
[ "$(id -u)" = 0 ] || { echo "hosts.sh: making network namespaces needs root" >&2; exit 1; }

python=${PYTHON:-python} port=$((20000 + $$ % 20000)) first=10.77.0.1
names=("flodl-$$-0" "flodl-$$-1")

# netem slows and delays. A kernel without it has perhaps tbf, which only slows.
slow() {
    ip netns exec "$1" tc qdisc add dev link0 root netem rate "${RATE:-100mbit}" delay "${DELAY:-2ms}" 2>/dev/null && return
    ip netns exec "$1" tc qdisc add dev link0 root tbf rate "${RATE:-100mbit}" burst 128kb latency 100ms || return
    echo "hosts.sh: this kernel has no netem: the link is slow, but without delay" >&2
}

cleanup() {
    trap - EXIT INT TERM
    for name in "${names[@]}"; do
        ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$name" 2>/dev/null || true
    done
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

make_network() {
    ip netns add "${names[0]}" && ip netns add "${names[1]}" || return
    ip link add link0 netns "${names[0]}" type veth peer name link0 netns "${names[1]}" || return
    for host in 0 1; do
        ip -n "${names[$host]}" link set lo up || return
        ip -n "${names[$host]}" addr add "10.77.0.$((host + 1))/24" dev link0 || return
        ip -n "${names[$host]}" link set link0 up || return
        slow "${names[$host]}" || return
    done
}
make_network || { echo "hosts.sh: this machine cannot make such a network" >&2; exit 77; }

if [ -n "${ELASTIC:-}" ]; then
    meet=(--rdzv-backend c10d --rdzv-endpoint "$first:$port" --rdzv-id "$$" --max-restarts 3)
else
    meet=(--master-addr "$first" --master-port "$port")
fi
started=()
for host in 0 1; do
    rank=(--node-rank "$host")
    [ -z "${ELASTIC:-}" ] || rank=(--rdzv-conf "is_host=$((host == 0))") # it cannot tell by the machine's name here
    FLODL_HOST="host$host" GLOO_SOCKET_IFNAME=link0 OMP_NUM_THREADS=1 \
        ip netns exec "${names[$host]}" "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 2 "${rank[@]}" \
        --local-addr "10.77.0.$((host + 1))" "${meet[@]}" "$@" &
    started+=($!)
done
code=0
for process in "${started[@]}"; do
    wait "$process" || code=$?
done
exit "$code"
