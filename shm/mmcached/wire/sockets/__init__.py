"""Typed messages between processes.

frames    encodes messages as frames, and back       channels    a router and its dealers, over ZeroMQ
listener  the socket to which clients connect        dialer      a client's end of such a connection
sending   non-blocking sends with a queue            zmtp        the ZMTP protocol, without a socket
unix_sockets   named unix sockets, and the process that listens there
"""
