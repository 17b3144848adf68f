"""Lets several hosts share what their stores have: the process between a store and Redis, Valkey or Mooncake.

    backend            what is asked of such a server
    urls               which server a URL names
    redis              Redis or Valkey
    mooncake           Mooncake Store
    breaker            a server that fails time after time is left alone
    records            how a record is framed there
    shared_records     records above a server: epochs, parts, the breaker
    epoch_note         the epoch to which this host belongs, on disk
    process            the role: threads, and who orders what
    fetching           from there into the store of this host
    saving             from the store of this host to there
    claims             who computes what nobody has
    first_level        the store of this host, as this process sees it
    counts             its figures

The frontend orders, and never waits: what this process finds it puts like any client, what others have put it saves.
"""
