"""A role that counts as fast as it can: `python stats_child.py PAGE`. Says `attached` once its first figures are in."""

from __future__ import annotations

import sys
from pathlib import Path

from mmcached.shm.stats.page import StatsPageWriter
from mmcached.wire.engine_stats import EncoderCacheStats, EngineStats, KVCacheStats
from mmcached.wire.stats import RoleName


def main() -> None:
    with StatsPageWriter(Path(sys.argv[1]), RoleName("engine")) as writer:
        count = 0
        while True:
            count += 1
            kv = KVCacheStats(queries=2 * count, hits=count, blocks_used=7)
            encoder = EncoderCacheStats(queries=count, hits=count)
            writer.publish(EngineStats(steps=count, leases_held=count % 5, kv=kv, encoder=encoder))
            if count == 1:
                sys.stdout.write("attached\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
