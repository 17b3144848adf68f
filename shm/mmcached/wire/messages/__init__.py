"""All messages between processes of mmcached: one module per receiving process, each with one union.

    frontend, engine, worker, client   messages to that process
    kv_events                          an engine's published events
    parts                              records in several messages

Messages are frozen, array-like and tagged; an unknown field or a value out of range does not validate. They carry no
tensor bytes: those lie in the ring (`Handle`) or in further frames of the message, described by `Tensor` or `Inline`.
"""
