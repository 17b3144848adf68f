"""Room for pixels: in order, never too many, and given back whatever happens."""

from __future__ import annotations

import threading

import pytest

from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import NotWantedError

DEADLINE_S = 30.0


def always() -> bool:
    return True


def test_pictures_wait_in_their_order_until_there_is_room() -> None:
    budget = PixelBudget(100)
    entered: list[int] = []
    let_go = {pixels: threading.Event() for pixels in (60, 70, 30, 20)}
    has_entered = {pixels: threading.Event() for pixels in let_go}

    def decode(pixels: int) -> None:
        with budget.room_for(pixels, always):
            entered.append(pixels)
            has_entered[pixels].set()
            assert let_go[pixels].wait(DEADLINE_S)

    threads = [threading.Thread(target=decode, args=(pixels,)) for pixels in let_go]
    for number, thread in enumerate(threads):
        thread.start()
        if number == 0:
            assert has_entered[60].wait(DEADLINE_S)
        while budget.num_waiting < number:  # each stands in the line before the next comes
            assert thread.is_alive()
    assert entered == [60], "30 would fit, but came after 70"
    let_go[60].set()
    assert has_entered[70].wait(DEADLINE_S)
    assert has_entered[30].wait(DEADLINE_S)
    assert entered == [60, 70, 30]
    for event in let_go.values():
        event.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (entered[-1], budget.num_pixels, budget.num_waiting) == (20, 0, 0)


def test_a_picture_that_is_larger_than_all_room_is_decoded_alone() -> None:
    budget = PixelBudget(10)
    with budget.room_for(1000, always), pytest.raises(NotWantedError), budget.room_for(1, lambda: False):
        pytest.fail("there was no room")
    assert (budget.num_pixels, budget.num_waiting) == (0, 0)


def test_room_is_given_back_after_an_error() -> None:
    budget = PixelBudget(10)
    with pytest.raises(ZeroDivisionError), budget.room_for(10, always):
        raise ZeroDivisionError
    with budget.room_for(10, always):
        assert budget.num_pixels == 10
