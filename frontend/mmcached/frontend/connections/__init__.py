"""The frontend's ends of its sockets and rings.

listening   binds the sockets of clients and engines
presence    binds each client to one connection and one lock
rings       makes the two rings
entry_owners  who reads a ring
readers     leases that are granted to engines
"""
