"""Runs a Ray cluster of several nodes on this machine, in a process of its own: Ray leaves descriptors open in whoever
has started one.

python -m tests.hosts.ray.cluster_process NODES SERVICES     the first SERVICES nodes have the resource `host`
    prints the address and the ids of the nodes, as JSON in a line
    reads a line: the id of a node, which is killed; then prints an empty line
    ends the cluster at the end of its input
"""

from __future__ import annotations

import json
import sys

from ray.cluster_utils import Cluster

HEALTH = {"health_check_period_ms": 500, "health_check_timeout_ms": 2000, "health_check_failure_threshold": 4}
"""How soon Ray notices that a node is gone; its defaults take half a minute."""
STORE_BYTES = 80 << 20


def main(num_nodes: int, num_services: int) -> None:
    cluster = Cluster()
    try:
        nodes = {}
        for index in range(num_nodes):
            more = {"_system_config": HEALTH, "include_dashboard": False} if index == 0 else {}
            resources = {"host": 1} if index < num_services else {}
            node = cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES, resources=resources, **more)
            nodes[node.node_id] = node
        cluster.wait_for_nodes()
        print(json.dumps({"address": cluster.address, "nodes": list(nodes)}), flush=True)
        for line in sys.stdin:
            cluster.remove_node(nodes[line.strip()], allow_graceful=False)
            print(flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
