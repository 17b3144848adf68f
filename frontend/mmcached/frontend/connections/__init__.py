"""The frontend's sockets, and its ring.

listening      binds the sockets of clients and engines
presence       binds each client to one connection and one lock
rings          makes or adopts the ring
entry_owners   readers of the ring
channel        interface of a socket with many peers
"""
