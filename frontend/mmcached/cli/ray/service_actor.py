"""An actor that runs one service on its node, as `mmcached serve` does, and ends with it.

the service ends by itself   the actor ends too, and Ray restarts both
the actor is killed          the service is killed with it
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import default_run_dir

_TRIES = 3
_PAUSE_S = 1.0


class ServiceActor:
    """A service, to be made an actor of Ray with one thread; it is ready when this is made.

    Args:
        fields: Fields of its `ServiceConfig`, without the cluster's address, which the actor knows.
        run_dir: Run directory on this node; "{node}" becomes the node's id, as `mmcached ray status` shows it.

    Raises:
        ServiceUnavailable: It did not become ready.
    """

    def __init__(self, fields: Mapping[str, Any], run_dir: str) -> None:
        import ray

        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        encoder = {**fields["encoder"], "ray_address": context.gcs_address}
        config = ServiceConfig.from_fields({**fields, "encoder": encoder})
        place = Path(run_dir.replace("{node}", self._node_id)) if run_dir else default_run_dir()
        self._service = _started(config, place)
        self._is_stopped = False
        threading.Thread(target=self._end_with_service, name="mmcached-service", daemon=True).start()

    def describe(self) -> dict[str, str]:
        return {"node": self._node_id, "run_dir": str(self._service.run_dir)}

    def stop(self) -> int:
        """End the service in order and return its exit status."""
        self._is_stopped = True
        return self._service.stop()

    def _end_with_service(self) -> None:
        self._service.process.wait()
        if not self._is_stopped:
            os._exit(1)


def _started(config: ServiceConfig, run_dir: Path) -> ChildService:
    """Start a service, with retries: a service killed with its former actor may still hold the run directory."""
    for last in (False,) * (_TRIES - 1) + (True,):
        with tempfile.TemporaryDirectory(prefix="mmcached-") as scratch:
            service = ChildService(run_dir, config, Path(scratch) / "config.json")
            try:
                return service.__enter__()
            except ServiceUnavailable:
                if last:
                    raise
        time.sleep(_PAUSE_S)
    raise AssertionError  # not reached
