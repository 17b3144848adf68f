"""The client's side of the store, without sockets.

reads           calls that read: get, contains, keys; their messages and their errors
verbs           calls that change the store: put, claims, drop
sessions        the session of the current ring, and messages that concern it
session         the client as a reader of one ring
hits            a found record
bare            a single tensor stored as a record
put_result      the result of a put
claims          the answer for a key without a record
tokens          leases as strings, for other processes
lease_returns   returns leases from any thread
offers          sends puts                       nursery: the segment that large puts are written into
fail_open       errors that count as misses
"""
