"""Ray's autoscaler by posse: each node type is a group of posse. Needs `ray`, which this module does not install.

In the configuration that `ray start --head --autoscaling-config=FILE` reads:

    provider:
      type: external
      module: posse.ray.PosseNodeProvider
      disable_node_updaters: true
      disable_launch_config_check: true
      foreground_node_launch: true

The names under `available_node_types` are the groups; `max_workers` may not exceed the group's `max`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, DefaultDict, Dict, List, Optional

from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD
from ray.autoscaler.batching_node_provider import BatchingNodeProvider, NodeData, ScaleRequest
from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, STATUS_UP_TO_DATE
from ray.experimental import internal_kv
from ray.util import get_node_ip_address

from ._client import Client

HEAD = "head"
# An executor in one of these states is a node, or will be one.
LIVE = ("requested", "pending", "running")


def _page() -> Optional[str]:
    """The URL of Ray's dashboard, if there is one."""
    known = internal_kv._internal_kv_initialized()
    address = known and internal_kv._internal_kv_get(DASHBOARD_ADDRESS, namespace=KV_NAMESPACE_DASHBOARD)
    return f"http://{address.decode()}" if address else None


class PosseNodeProvider(BatchingNodeProvider):
    """Ray's nodes are posse's executors: a node's id is the executor's id, its type is the group."""

    def __init__(self, provider_config: Dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._client = Client()

    def get_node_data(self) -> Dict[str, NodeData]:
        """The head and the live executors, as posse sees them."""
        if page := _page():
            self._client.ready(page)
        status = self._client.status()
        head = NodeData(NODE_KIND_HEAD, self.provider_config.get("head_type", HEAD), get_node_ip_address(), STATUS_UP_TO_DATE)
        nodes = {HEAD: head}
        for id, one in status.executors.items():
            if one.state in LIVE:
                group = status.groups.get(one.group)
                pending = (group and group.message) or one.state
                state = STATUS_UP_TO_DATE if one.state == "running" else pending
                nodes[str(id)] = NodeData(NODE_KIND_WORKER, one.group, one.ip, state)
        return nodes

    def submit_scale_request(self, scale_request: ScaleRequest) -> None:
        """Ends the nodes that Ray has chosen, and sets the targets."""
        victims: DefaultDict[str, List[int]] = defaultdict(list)
        for node in scale_request.workers_to_delete:
            victims[self.node_data_dict[node].type].append(int(node))
        for group, target in scale_request.desired_num_workers.items():
            if ids := victims.get(group):
                self._client.kill(ids, target=target, force=True, reason="idle for Ray")
            else:
                self._client.scale(target, group)
