"""The client's half of the store, without sockets.

reads           the calls that read: get, contains, keys; what each asks, and what becomes of errors
verbs           the calls that change: put, claims, drop
sessions        the session of the present ring, and what arrives for it
session         the client as a reader of one ring
hits            a record that was found
bare            a bare tensor as a record
put_result      what has become of a put
claims          what a key without a record gets
tokens          leases that are handed on, as strings
lease_returns   leases on their way back
offers          puts on their way                 nursery: where large ones are laid
fail_open       errors that count as misses
"""
