"""All messages between processes of mmcached: a module for each receiving process, each with one union.

`frontend` has the messages from clients, `frontend_from_engines` those from engines; `engine`, `worker` and `client`
have those to these processes. `second_level` has those between the frontend and its second level, `verification` those
about recomputed hits. `kv_events` are published by an engine; `parts` are in several messages.

Messages are frozen, array-like and tagged; an unknown field or a value out of range does not
validate. They carry no tensor bytes: those lie in the ring (`Handle`) or in further frames, described by `Tensor` or
`Inline`.
"""
