"""The sockets of the clients.

link            one connection: which call a message is for
thread_link     how threads wait, and which of them reads       loop_link: how an event loop does both
shared_socket   one socket, for many threads or a loop
presence        the lock that proves that a client lives
forks           what is done at a fork, in parent and child
uninterrupted   runs what a signal must not interrupt
"""
