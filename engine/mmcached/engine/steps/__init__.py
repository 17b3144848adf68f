"""Requests take part in steps, one step at a time.

request    one request: tokens, items, how far it is computed
step_log   one manager's open step, and what is sent to the workers with it
"""
