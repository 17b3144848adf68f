"""Requests take part in steps, which begin and end in their order.

request      one request: tokens, items, how far it is computed
step_log     one manager's open step, and what is sent to the workers with it
step_queue   several steps in their order: begun, launched, committed or withdrawn
"""
