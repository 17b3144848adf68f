"""A service in one process, for the verbs: `python -m tests.cli.service_child RUN_DIR works|broken`.

Seat, configuration, page and HTTP socket are real; the data path is a thread that answers at once, or never. Says `up`,
ends at SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from mmcached.cli.serve.seat import Seat
from mmcached.cli.watch.http_pages import AdminServer
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.client import Flushed, Probed, ToClient
from mmcached.wire.messages.frontend import Flush, FromClient, Probe
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import FrontendStats, RoleName, StoreStats
from tests.cli.fake_view import FRONTEND, FakeView, a_role, page_of
from tests.client.services import fake_service

CONFIG = ServiceConfig(probe_timeout_s=0.2)


def answer(message: FromClient) -> list[ToClient]:
    match message:
        case Probe():
            return [Probed(message.request_id, [0], 2, [])]
        case Flush():
            return [Flushed(message.request_id)]
        case _:
            return []


def main() -> None:
    directory = RunDir(Path(sys.argv[1]))
    directory.create()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with ExitStack() as stack:
        stack.enter_context(Seat(directory))
        CONFIG.save(directory.config)
        reader, writers = stack.enter_context(page_of(directory.path, RoleName("supervisor"), FRONTEND))
        writers[FRONTEND].publish(FrontendStats(requests_done=5))
        stack.enter_context(fake_service(directory.path, answer if sys.argv[2] == "works" else lambda message: []))
        view = FakeView(directory.path, CONFIG, given=[a_role(FRONTEND, os.getpid(), "running")])
        server = stack.enter_context(AdminServer(view, reader))
        server.sample(reader.read())
        writers[FRONTEND].publish(FrontendStats(requests_done=5, store=StoreStats(queries=40, hits=30)))
        sys.stdout.write("up\n")
        sys.stdout.flush()
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main()
