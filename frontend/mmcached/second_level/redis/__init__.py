"""Speaks to Redis or Valkey: one server, a cluster, or the master that sentinels name.

    place          what a URL says of it
    replies        what the server says, read into buffers of its size
    link           one connection, whose calls end by their deadlines
    attempts       connections are made aside; who needs one waits no longer than it has time
    nodes          which server has a key
    backend        what `second_level.backend` promises

Of redis-py: connecting, TLS, being let in, sentinels, errors. Values are sent and read here, without a copy of them.
"""
