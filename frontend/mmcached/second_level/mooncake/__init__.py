"""A backend for Mooncake Store: its master, and the processes that lend it memory.

    place       the settings in a URL
    calls       deadlines for calls that cannot be cancelled
    master      a reachability check of the master
    client      a wrapper of Mooncake's own client and its error numbers
    start       set-up of that client; imports Mooncake
    backend     the `second_level.backend` interface

Mooncake does not protect its memory: anyone who reaches a client's port may read and write its values.
"""
