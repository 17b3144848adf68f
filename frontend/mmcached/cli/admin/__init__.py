"""Verbs that look at a running service and end it.

verbs      ping, status, info, shm ls, shm gc, drain, flush
observe    how a command finds a running service
shm_list   shared-memory segments of this user
"""
