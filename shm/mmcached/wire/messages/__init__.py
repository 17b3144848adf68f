"""Everything that one process of mmcached can say to another: one module per receiving process, one union in each.

    frontend, engine, worker, client   what each receives
    kv_events                          what an engine publishes
    parts                              records that several messages carry

Messages are frozen, array-like and tagged; an unknown field or a value out of range does not validate. They carry no
tensor bytes: those lie in the ring (`Handle`) or in further frames of the message, described by `Tensor` or `Inline`.
"""
