"""The clients' socket, and the ring; start at `listening`.

listening      binds the socket of clients
presence       binds each client to one connection and one lock
rings          makes or adopts the ring
entry_owners   readers of the ring
channel        interface of a socket with many peers
"""
