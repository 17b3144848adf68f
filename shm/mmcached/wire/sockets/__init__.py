"""Typed messages between processes.

frames         a message as frames, and back
channels       a router and its dealers, over ZeroMQ
listener       the socket at which any number of clients connect
dialer         a client's end of such a connection
sending        what the kernel takes now, and the rest
zmtp           the protocol of that socket, sans I/O
unix_sockets   named unix sockets, and who listens there
"""
