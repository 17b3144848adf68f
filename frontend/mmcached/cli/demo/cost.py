"""Measures the time of a request with one photograph, by where its output is cached.

    new                     decoded, processed and encoded for this request
    known to this engine    the engine's encoder cache has its output
    known to another one    the output is read from the store, where the first engine has put it
    in a client             the client reads the output in shared memory by itself; no message is sent

The time is from the call to the answer, with one token to generate. The text before the photograph differs in each
request, so that no cached prefix covers the photograph.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from rich.table import Table

from mmcached.cli.demo.photos import Photo
from mmcached.cli.demo.prompts import PromptWriter
from mmcached.client import Client

NEW = "new: decode, process, encode"


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds that each photograph took in one situation."""

    situation: str
    seconds: Sequence[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def warm_up(client: Client, writer: PromptWriter, num_engines: int) -> None:
    """Send each engine an image of its own, so that measured requests do not include first-use costs."""
    for engine in range(num_engines):
        picture = io.BytesIO()
        Image.new("RGB", (256, 256), (40 * engine, 0, 0)).save(picture, "PNG")
        _request(client, writer, "warm up", picture.getvalue())


def measure_costs(
    client: Client, writer: PromptWriter, photos: Sequence[Photo], num_engines: int, advance: Callable[[], None]
) -> list[Cost]:
    """Return the costs of photographs that are new to the service, and then of the same photographs.

    Args:
        client: Client of a service that routes round robin and has no other requests, so that engines take turns.
        advance: Called after each photograph.
    """
    new, others, again, in_place = [], [], [], []
    for photo in photos:
        new.append(_request(client, writer, "first", photo.data))
        others += [_request(client, writer, f"engine {engine}", photo.data) for engine in range(1, num_engines)]
        again.append(_request(client, writer, "again", photo.data))
        started = time.perf_counter()
        client.encode([photo.data], view=True)
        in_place.append(time.perf_counter() - started)
        advance()
    costs = [Cost(NEW, new), Cost("again in this engine", again)]
    if others:
        costs.append(Cost("in another engine", others))
    return [*costs, Cost("in a client, in place", in_place)]


def measure_again(client: Client, writer: PromptWriter, photos: Sequence[Photo], situation: str) -> Cost:
    return Cost(situation, [_request(client, writer, situation, photo.data) for photo in photos])


def make_cost_table(costs: Sequence[Cost]) -> Table:
    """Return a table with a row for each situation: its median in milliseconds, and the first row's median over it."""
    table = Table(title="what a photograph costs (median)", title_justify="left")
    table.add_column("situation", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("saves", justify="right", no_wrap=True)
    for cost in costs:
        saves = "" if cost is costs[0] else shown_factor(costs[0], cost)
        table.add_row(cost.situation, f"{cost.median_s * 1e3:.2f}", saves)
    return table


def shown_factor(new: Cost, known: Cost) -> str:
    factor = new.median_s / known.median_s
    return f"{factor:,.0f} x" if factor >= 10 else f"{factor:.1f} x"


def _request(client: Client, writer: PromptWriter, words: str, photo: bytes) -> float:
    prompt = writer.prompt(f"{words}: ", "image")
    started = time.perf_counter()
    client.generate(prompt, [photo], max_tokens=1)
    return time.perf_counter() - started
