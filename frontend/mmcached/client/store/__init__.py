"""The client's side of the store, without sockets.

access          contact, session and errors of all calls
reads           calls that read: get, contains, keys
puts            calls that put and drop records
verbs           calls that claim keys; the calls of all four modules
aliases         calls that bind names of media to content
sessions        the session of the current ring, and messages that concern it
session         the client as a reader of one ring    reader_session: its entry there
hits            a found record
bare            a single tensor stored as a record
put_result      the result of a put
claims          the answer for a key without a record
tokens          leases as strings, for other processes
lease_returns   returns leases from any thread
offers          sends puts                       nursery: the segment that large puts are written into
fail_open       errors that count as misses
"""
