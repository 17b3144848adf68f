from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcached.shm.ring.chain import Chunk, Extent


@given(st.data())
def test_linked_and_unlinked_in_any_order(data: st.DataObject) -> None:
    edge = Chunk.edge(20)
    linked = dict[int, Chunk]()
    for offset in data.draw(st.lists(st.integers(0, 19), max_size=40)):
        if offset in linked:
            linked.pop(offset).unlink()
        else:
            linked[offset] = Chunk(Extent(offset, offset, 1))
            linked[offset].link(edge.last_before(offset))
        assert [chunk.offset for chunk in edge.others()] == sorted(linked)
        assert all(chunk.next.prev is chunk is chunk.prev.next for chunk in (edge, *edge.others()))
