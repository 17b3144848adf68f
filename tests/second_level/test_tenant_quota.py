"""The quota of a tenant in the second level: what was saved counts as long as a record may be on the server."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from mmcached.second_level import tenant_quota
from mmcached.second_level.tenant_quota import NUM_PERIODS, TenantQuota

TTL_S = 160.0
PERIOD_S = TTL_S / NUM_PERIODS
QUOTA = 1000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quota(clock: Clock) -> Iterator[TenantQuota]:
    quota = TenantQuota(QUOTA, TTL_S, clock)
    yield quota
    assert not quota._reserved


def save(quota: TenantQuota, tenant: str, num_bytes: int) -> bool:
    is_within = quota.reserve(tenant, num_bytes)
    if is_within:
        quota.commit(tenant, num_bytes)
    return is_within


def test_a_tenant_saves_up_to_its_quota_and_other_tenants_do_not_count(quota: TenantQuota) -> None:
    assert not save(quota, "ann", QUOTA + 1)
    assert save(quota, "ann", 600)
    assert save(quota, "ann", 400)
    assert not quota.has_room("ann", 1)
    assert not save(quota, "ann", 1)
    assert quota.has_room("bob", QUOTA)
    assert save(quota, "bob", QUOTA)


def test_reserved_bytes_count_until_they_are_released(quota: TenantQuota) -> None:
    assert quota.reserve("ann", 600)
    assert not quota.has_room("ann", 401)
    assert not quota.reserve("ann", 401)
    quota.release("ann", 600)
    assert save(quota, "ann", QUOTA)


@pytest.mark.parametrize("offset_s", [0.0, 0.5 * PERIOD_S, PERIOD_S - 0.001])
def test_saved_bytes_count_for_the_lifetime_of_a_record_and_a_period_at_most(
    quota: TenantQuota, clock: Clock, offset_s: float
) -> None:
    clock.now += offset_s
    assert save(quota, "ann", QUOTA)
    clock.now += TTL_S
    assert not quota.has_room("ann", 1)
    clock.now += PERIOD_S
    assert quota.has_room("ann", QUOTA)


def test_bytes_count_from_the_end_of_their_save(quota: TenantQuota, clock: Clock) -> None:
    assert quota.reserve("ann", QUOTA)
    clock.now += 5.0 * PERIOD_S
    quota.commit("ann", QUOTA)
    clock.now += TTL_S
    assert not quota.has_room("ann", 1)


def test_no_sequence_of_saves_has_more_than_the_quota_on_the_server(quota: TenantQuota, clock: Clock) -> None:
    draw = random.Random(1)
    on_server: dict[str, list[tuple[float, int]]] = defaultdict(list)
    num_saved = 0
    for _ in range(5000):
        clock.now += draw.expovariate(1 / 3.0)
        tenant, num_bytes = draw.choice("abc"), draw.randrange(1, 300)
        live = [(end, each) for end, each in on_server[tenant] if end > clock.now]
        if save(quota, tenant, num_bytes):
            live.append((clock.now + TTL_S, num_bytes))
            num_saved += 1
        on_server[tenant] = live
        assert sum(each for _, each in live) <= QUOTA
    assert num_saved > 500


def test_of_too_many_tenants_the_one_that_saved_first_is_forgotten(
    quota: TenantQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_quota, "MAX_TENANTS", 2)
    assert save(quota, "ann", QUOTA - 1)
    assert save(quota, "bob", QUOTA)
    assert save(quota, "ann", 1)
    assert save(quota, "eve", QUOTA)
    assert not quota.has_room("ann", 1)
    assert not quota.has_room("eve", 1)
    assert quota.has_room("bob", 1)


def test_a_table_that_has_no_quota_keeps_nothing(clock: Clock) -> None:
    quota = TenantQuota(None, TTL_S, clock)
    assert quota.has_room("ann", 1 << 60)
    assert save(quota, "ann", 1 << 60)
    assert quota.reserve("ann", 1)
    quota.release("ann", 1)
    assert not quota._reserved
    assert not quota._tenant_to_saved
