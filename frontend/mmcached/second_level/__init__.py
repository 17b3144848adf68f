"""The second level: a process that connects a host's store with a Redis, Valkey or Mooncake shared by several hosts.

    backend            the interface to a shared server
    urls               the backend for a URL
    namespaces         several fleets on one server
    redis, mooncake    the backends: Redis or Valkey, and Mooncake Store
    breaker            the circuit breaker
    records            the framing of records on the server
    shared_records     records above a backend: epochs, parts, the breaker
    epoch_note         this host's epoch, on disk
    process            the role: threads and the frontend's orders
    fetching, saving   from the server into the host's store, and back
    tenant_quota       bytes that this host saves for each tenant
    claims             which host computes a missing record
    first_level        the host's store, as a client
    counts             figures for the stats page

The frontend sends orders and never waits; this process puts what it fetches like any client, and saves what clients
put.
"""
