"""A backend for Redis or Valkey: one server, a cluster, or the master that sentinels name.

    place          the settings in a URL
    replies        parses replies into buffers of their size
    link           one connection, whose calls end by their deadlines
    attempts       connects in the background, so that callers keep their deadlines
    nodes          the server of a key
    backend        the `second_level.backend` interface

Uses redis-py for connecting, TLS, authentication, sentinels and errors. Values are sent and read here, without a copy.
"""
