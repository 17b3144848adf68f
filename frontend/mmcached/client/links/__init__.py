"""The sockets of the clients.

sync_link       the connection of a blocking client           shared_socket: one socket, many threads
async_link      the connection of an asyncio client
incarnation     what a client has until it forks or its connection breaks
conversation    the messages that both say, and checks of answers
presence        the lock that proves that a client lives
forks           what a forked child lets go of
uninterrupted   runs what a signal must not interrupt
"""
