"""Refuses requests before any work is spent on them: too many, too large, or invalid."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.cache.store_keys import ITEMS_TENANT
from mmcached.gateway.processing.fair_queue import fair_share
from mmcached.gateway.requests.open_requests import OpenRequest, RequestTable
from mmcached.gateway.requests.prompts import Prompts
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest, RemoteProtocolError, ServiceUnavailable


class Admission:
    """The limits of one frontend."""

    def __init__(self, config: ServiceConfig, requests: RequestTable, prompts: Prompts) -> None:
        self._config = config
        self._requests = requests
        self._prompts = prompts
        self.is_draining = False

    def check(self, request: OpenRequest, check_files: Callable[[OpenRequest], None]) -> None:
        """Check that a request may be opened; set its tokens, if they are known.

        Args:
            check_files: Checks its files without decoding them.

        Raises:
            ServiceUnavailable: The service is draining, or too many requests are open, or their files take too many
                bytes.
            RemoteProtocolError: The client uses its number for another open request.
            InvalidRequest: Often a subclass: the request cannot be served.
        """
        if request.message.tenant == ITEMS_TENANT:
            reason = "another name: the service keeps its processed items under this one"
            raise InvalidRequest("tenant", request.message.tenant, reason)
        self.check_room(request)
        self._prompts.check(request)
        check_files(request)
        self._check_file_bytes(request)

    def check_room(self, request: OpenRequest) -> None:
        message, limits = request.message, self._config.limits
        if self.is_draining:
            raise ServiceUnavailable("the service is draining; try another one")
        num_open, num_own = len(self._requests), self._requests.num_of_client(message.client_id)
        for name, whose, number, limit in (
            ("max_num_requests", "requests", num_open, self._config.max_num_requests),
            ("limits.max_requests_per_client", "requests of this client", num_own, limits.max_requests_per_client),
        ):
            if number >= limit:
                reason = f"{number} {whose} are open ({name} = {limit}); try again later"
                raise ServiceUnavailable(reason, field=name, value=number, limit=limit)
        if self._requests.find(message.client_id, message.request_id) is not None:
            raise RemoteProtocolError(f"request {message.request_id} of this client is open already", "request_id")

    def _check_file_bytes(self, request: OpenRequest) -> None:
        """Refuse a client's files beyond its share of memory; while no files are held, any size is accepted."""
        new, held = request.file_bytes, self._requests.file_bytes
        if not new or not held:
            return
        of_client = self._requests.file_bytes_of_client(request.message.client_id)
        name, limit = "limits.max_open_file_mb", self._config.limits.max_open_file_mb * MIB
        if of_client + new > fair_share(limit, held - of_client):
            reason = f"open requests hold {held} bytes of files, {of_client} of them this client's"
            reason = f"{reason} ({name} = {limit} bytes, half of what is left for one client); try again later"
            raise ServiceUnavailable(reason, field=name, value=held + new, limit=limit)
