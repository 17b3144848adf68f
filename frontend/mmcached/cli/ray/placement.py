"""Places services and encoders on a Ray cluster as detached actors, reports on them, and removes them.

    encoder-0 …          one in each bundle of the placement group "encoders"
    service-NODE …       one on each chosen node, and on no other

Ray restarts dead actors: an encoder wherever a bundle of its group finds room, a service on its node. Existing actors
are left as they are, so a second `up` adds missing ones, such as the service of a new node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mmcached.cli.ray.placed_config import PlacedConfig, Resources, missing
from mmcached.cli.ray.service_actor import ServiceActor
from mmcached.integrations.ray.encoder_actor import EncoderActor
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.worker.encoders.actor_table import Report
from mmcached.worker.encoders.ray_actors import PREFIX, connect

GROUP = "encoders"
SERVICE = "service-"
MAX_CALLS = 100_000
"""Calls that an encoder accepts at a time; it computes one of them, and the others wait."""
_ANSWER_S = 10.0
_PAUSE_S = 0.2


class PlacedActor(NamedTuple):
    """One actor.

    Attributes:
        node: Id of its node; "" if it does not answer.
        about: A service's run directory; an encoder's fingerprint and number of open calls.
    """

    name: str
    node: str
    about: str


class Placement:
    """The actors in one namespace of a cluster; this process is its driver until `close`.

    Raises:
        ConfigError: Ray is not installed.
        ServiceUnavailable: The cluster is not reachable.
    """

    def __init__(self, config: PlacedConfig) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise missing() from None
        self._ray: Any = ray
        self._config = config
        connect(config.address, config.namespace)

    def up(self, timeout_s: float) -> list[PlacedActor]:
        """Start missing actors, encoders first, and return all when they answer.

        Raises:
            ConfigError: There is a group of another size, or no node for a service.
            ServiceUnavailable: An actor does not answer in time; started actors stay.
        """
        deadline = time.monotonic() + timeout_s
        nodes = self._nodes()
        group = self._group(deadline)
        names = [self._start_encoder(group, index) for index in range(self._config.encoders.count)]
        placed = [self._wait_for(name, deadline) for name in names]
        names = [self._start_service(node) for node in nodes]
        return placed + [self._wait_for(name, deadline) for name in names]

    def status(self) -> list[PlacedActor]:
        """Return all actors; an actor that does not answer within seconds has no node."""
        deadline = time.monotonic() + _ANSWER_S
        return [self._look(name, deadline) for name in self._names()]

    def down(self, timeout_s: float) -> int:
        """End services in order, then all actors; return their number. ServiceUnavailable if some are still there."""
        deadline = time.monotonic() + timeout_s
        names = list(self._names())
        ending = [self._handle(name).stop.remote() for name in names if name.startswith(SERVICE)]
        self._ray.wait(ending, num_returns=len(ending), timeout=timeout_s) if ending else None
        for name in names:
            try:
                self._ray.kill(self._ray.get_actor(name), no_restart=True)
            except ValueError:  # it has ended by itself
                continue
        self._remove_group()
        while left := list(self._names()):
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{', '.join(left)}: still there after {timeout_s} s")
            time.sleep(_PAUSE_S)
        return len(names)

    def close(self) -> None:
        """Disconnect from the cluster; the actors stay."""
        self._ray.shutdown()

    def _names(self) -> Iterator[str]:
        from ray.util import list_named_actors

        return (name for name in sorted(list_named_actors()) if name.startswith((PREFIX, SERVICE)))

    def _nodes(self) -> list[str]:
        wanted = self._config.frontends
        found = [
            node["NodeID"]
            for node in self._ray.nodes()
            if node["Alive"]
            and (not wanted.resource or wanted.resource in node["Resources"])
            and wanted.labels.items() <= node.get("Labels", {}).items()
        ]
        if not found:
            raise ConfigError("frontends", f"{wanted.resource} {wanted.labels}", "no living node has these")
        return sorted(found)

    def _group(self, deadline: float) -> Any:
        from ray.util.placement_group import get_placement_group, placement_group

        encoders = self._config.encoders
        bundles = [encoders.resources.bundle()] * encoders.count
        try:
            group = get_placement_group(GROUP)
        except ValueError:
            group = placement_group(bundles, strategy=encoders.placement, name=GROUP, lifetime="detached")
        if group.bundle_count != encoders.count:
            limit = f"the cluster has a group of {group.bundle_count}: `mmcached ray down` removes it"
            raise ConfigError("encoders.count", encoders.count, limit)
        if not group.wait(max(1, round(deadline - time.monotonic()))):
            raise ServiceUnavailable(
                f"no room for {encoders.count} times {encoders.resources.bundle()}, {encoders.placement}, in time; the "
                f"cluster has {self._ray.cluster_resources()}"
            )
        return group

    def _remove_group(self) -> None:
        from ray.util.placement_group import get_placement_group, remove_placement_group

        try:
            remove_placement_group(get_placement_group(GROUP))
        except ValueError:
            return

    def _start_encoder(self, group: Any, index: int) -> str:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        options = {"scheduling_strategy": strategy, "max_concurrency": MAX_CALLS}
        resources, fields = self._config.encoders.resources, self._config.encoder_fields()
        return self._start(f"{PREFIX}{index}", EncoderActor, resources, options, fields)

    def _start_service(self, node: str) -> str:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        wanted = self._config.frontends
        options = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        fields = self._config.service_fields("auto")
        return self._start(f"{SERVICE}{node[:12]}", ServiceActor, wanted.resources, options, fields, wanted.run_dir)

    def _start(
        self, name: str, kind: type, resources: Resources, options: Mapping[str, Any], *arguments: object
    ) -> str:
        always = {"name": name, "get_if_exists": True, "lifetime": "detached", "max_restarts": -1}
        self._ray.remote(kind).options(**always, **resources.options(), **options).remote(*arguments)
        return name

    def _handle(self, name: str) -> Any:
        return self._ray.get_actor(name)

    def _wait_for(self, name: str, deadline: float) -> PlacedActor:
        """Return an actor when it answers; ServiceUnavailable if it could not be started, or not in time."""
        try:
            return self._ask(name, deadline)
        except (self._ray.exceptions.RayError, ValueError) as error:
            # The earlier lines are the traceback in the actor's process.
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise ServiceUnavailable(f"{name} does not answer: {type(error).__name__}: {reason}") from error

    def _look(self, name: str, deadline: float) -> PlacedActor:
        try:
            return self._ask(name, deadline)
        except (self._ray.exceptions.RayError, ValueError) as error:
            return PlacedActor(name, "", f"no answer: {type(error).__name__}")

    def _ask(self, name: str, deadline: float) -> PlacedActor:
        actor = self._handle(name)
        timeout_s = max(0.0, deadline - time.monotonic())
        if name.startswith(SERVICE):
            said = self._ray.get(actor.describe.remote(), timeout=timeout_s)
            return PlacedActor(name, said["node"], said["run_dir"])
        packed, node = self._ray.get([actor.describe.remote(), actor.node_id.remote()], timeout=timeout_s)
        report = msgspec.msgpack.decode(packed, type=Report)
        return PlacedActor(name, node, f"{report.fingerprint}, {report.num_open} open")
