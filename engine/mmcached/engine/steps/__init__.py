"""Requests, and the transaction log of a step.

request    one request: tokens, items, progress
step_log   one manager's open step, and the notices sent to the workers with it
"""
