from __future__ import annotations

from mmcached.shm.segment.board import FREE_BYTES, NO_LIMIT, READER_LIMIT, STORE_EPOCH, Board
from mmcached.shm.segment.layout import ATTACHED_WORD


def test_each_word_has_its_place_and_closing_detaches_all() -> None:
    words = memoryview(bytearray(8 * (ATTACHED_WORD + 3))).cast("Q")
    board = Board(words)
    board.set_store_epoch(5)
    board.set_limits(7, NO_LIMIT)
    board.set_attached(0, 11)
    board.set_attached(2, 13)
    assert (words[STORE_EPOCH], words[READER_LIMIT], words[FREE_BYTES]) == (5, 7, NO_LIMIT)
    assert words[ATTACHED_WORD:].tolist() == [11, 0, 13]
    assert (board.attached(2), board.store_epoch()) == (13, 5)
    board.detach_all()
    assert words[ATTACHED_WORD:].tolist() == [0, 0, 0]
    assert board.store_epoch() == 5
