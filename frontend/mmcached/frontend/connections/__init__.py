"""The frontend's ends of its sockets, and its ring.

listening   binds the sockets of clients and engines
presence    binds each client to one connection and one lock
rings       makes the ring
entry_owners  who reads it
channel     what is asked of a socket
"""
