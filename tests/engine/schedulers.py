"""A scheduler with requests, and steps of it that leave its books consistent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmcached.engine import Request, ScheduledStep, Scheduler
from tests.engine.builders import small_config
from tests.engine.integrity import check_scheduler


def scheduler_with(requests: Iterable[Request] = (), **config: Any) -> Scheduler:
    scheduler = Scheduler(small_config(**config))
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def schedule(scheduler: Scheduler) -> ScheduledStep:
    step = scheduler.schedule()
    assert step is not None
    check_scheduler(scheduler)
    return step
