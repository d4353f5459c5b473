#!/bin/bash
# Train a sweep on all nodes of a job, by one Ray: on_nodes.sh RANK NODES HEAD ARGUMENTS, once on each node.
# HEAD is the address of rank 0, ARGUMENTS are what `sweep run` takes. RAY_AUTH_TOKEN must be the same on all nodes.
set -eu
rank=$1 nodes=$2 head=$3
shift 3
export RAY_AUTH_MODE=token
joined() { ray status --address="$head:6379" 2>/dev/null | grep -c " node_"; }

if [ "$rank" != 0 ]; then
    until joined >/dev/null; do sleep 2; done
    ray start --address="$head:6379" --block || true # it ends with the head's Ray
    exit
fi
ray start --head --port=6379 --node-ip-address="$head" --include-dashboard=false --block &
ray=$!
trap 'kill $ray' EXIT # and not `ray stop`, which would end the Ray of the machine's owner, too
until [ "$(joined)" -ge "$nodes" ]; do kill -0 $ray && sleep 2; done
sweep run "$@" --address "$head:6379"
