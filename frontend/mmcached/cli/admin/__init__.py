"""Verbs that look at a running service and end it.

verbs      ping, status, shm ls, shm gc, drain, flush
info       all facts and figures, as name:value
store_verbs   keys and inspect: what lies in the store
records    looks into a store, out of shared memory alone
client_locks  the living clients of a run directory
versions   which versions meet in a run directory
observe    how a command finds a running service
shm_list   shared-memory segments of this user
printing   what verbs say alike
"""
