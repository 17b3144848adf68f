"""No two pairs of tenant and key have one name, whatever is in them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mmcached.cache.store_keys import store_key

NAMES = st.text(st.characters(exclude_categories=[]), max_size=12)


@given(NAMES, NAMES, NAMES, NAMES)
@example("a", "bc", "ab", "c")
@example("", "x", "x", "")
@example("a\0", "b", "a", "\0b")
@example("a", "\ud800", "a", "\ufffd")
def test_different_pairs_have_different_names(tenant: str, key: str, other_tenant: str, other_key: str) -> None:
    is_same = (tenant, key) == (other_tenant, other_key)
    assert (store_key(tenant, key) == store_key(other_tenant, other_key)) == is_same


def test_names_are_of_one_size_and_stay_what_they_are() -> None:
    """A client of another version must find what this one has put."""
    assert {len(store_key(tenant, "k" * 200)) for tenant in ("", "t", "t" * 200)} == {64}
    assert store_key("tenant", "key") == store_key("tenant", "key")
