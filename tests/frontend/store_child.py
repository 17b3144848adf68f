"""A client that dies: `python -m tests.frontend.store_child RUN_DIR`. Takes an entry, leases `a`, claims `slow`.

Says `ready` when it holds all of it, and then waits to be killed.
"""

from __future__ import annotations

import secrets
import signal
import sys
from pathlib import Path

from mmcached.shm import ReaderEntry, RingReader
from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Claimed, ReaderRegistered, Records, ToClient, Welcome
from mmcached.wire.messages.frontend import ClaimRecord, ClientHello, GetRecords, RegisterReader
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.dialer import Dialer
from tests.shm.rings import Taking

DEADLINE_S = 60.0


def main() -> None:
    directory = RunDir(Path(sys.argv[1]))
    client_id = secrets.token_hex(16)
    presence = LockFile(directory.client_lock(client_id))
    channel: Dialer[ToClient] = Dialer(directory.client_address, ToClient)
    channel.send(ClientHello(client_id))
    welcome, _ = channel.receive(DEADLINE_S)
    assert isinstance(welcome, Welcome)
    assert welcome.store_ring is not None
    entry = ReaderEntry.attach(welcome.store_ring)
    channel.send(RegisterReader(client_id, 1, welcome.store_ring.epoch, entry.reader_id, entry.incarnation))
    channel.send(GetRecords(client_id, 2, ["a"], incarnation=entry.incarnation))
    channel.send(ClaimRecord(client_id, 3, "slow", DEADLINE_S))
    answers = [channel.receive(DEADLINE_S)[0] for _ in range(3)]
    assert [type(answer) for answer in answers] == [ReaderRegistered, Records, Claimed], answers
    with RingReader.open(welcome.store_ring) as ring:
        (place,) = answers[1].records  # type: ignore[union-attr]
        assert isinstance(place, Handle)
        assert entry.take_leases([Taking(place)], ring.look) == [True]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()
    assert presence, "held until the end"


if __name__ == "__main__":
    main()
