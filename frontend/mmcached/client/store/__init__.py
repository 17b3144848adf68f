"""The client's half of the store, without sockets.

verbs           get, put, contains, claims: what each says, and what becomes of errors
steps           what a verb asks of a socket
session         the client's row and mapping of one ring
hits            a record that was found
lease_returns   leases on their way back
fail_open       errors that count as misses
"""
