"""Speaks to Mooncake Store: its master, and the processes that lend it memory.

    place       what a URL says of it
    calls       calls that cannot be cut off end for who has made them
    master      whether the master is there at all
    client      Mooncake's own client, and what its numbers mean
    start       that client is set up; imports Mooncake
    backend     what `second_level.backend` promises

Mooncake knows nothing of the host's own shared memory: who reaches a client's port may read and write what it knows.
"""
