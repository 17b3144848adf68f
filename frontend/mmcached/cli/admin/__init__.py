"""Commands that inspect a running service and end it.

verbs      ping, status, shm ls, shm gc, drain, flush
info       all facts and figures, as name:value
store_verbs   keys and inspect: the store's records
records    reads a store's records from shared memory alone
client_locks  the live clients of a run directory
versions   versions of the command and the service
observe    how a command finds a running service
shm_list   shared-memory segments of this user
printing   output common to all commands
"""
