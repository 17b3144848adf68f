"""A request, and the steps that it takes part in.

request      one request: tokens, items, how far it is computed
step_queue   steps in their order: begun, launched, committed or withdrawn
open_step    the one step that may be open
freed_keys   keys that workers must drop, until they have confirmed it
"""
