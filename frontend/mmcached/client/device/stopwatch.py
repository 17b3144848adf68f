"""Times work on a device without waiting for it.

On the CPU the work is over at `stop`; on CUDA a pair of events is recorded in the stream.
"""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Runs from its creation until `stop`, which is called once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self._mark()

    def stop(self) -> None:
        self._mark()

    def is_over(self) -> bool:
        """Return whether the device has reached `stop`."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def seconds(self) -> float:
        """Return the measured time; only once it is over."""
        if self._events:
            began, ended = self._events
            return float(began.elapsed_time(ended)) / 1000
        first, last = self._times
        return last - first

    def _mark(self) -> None:
        if self._device.type != "cuda":
            self._times.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
