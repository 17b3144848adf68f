"""The sockets of the clients.

link            one connection: passes each message to its call
thread_link     waiting and reading for threads          loop_link: the same for an event loop
shared_socket   one socket, for many threads or a loop
presence        the lock that proves that a client lives
forks           callbacks at a fork, in parent and child
uninterrupted   runs a function that a signal must not interrupt
"""
