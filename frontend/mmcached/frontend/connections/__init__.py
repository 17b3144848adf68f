"""The frontend's ends of its sockets.

listening   binds the sockets of clients and engines
seats       binds each client to one connection
"""
