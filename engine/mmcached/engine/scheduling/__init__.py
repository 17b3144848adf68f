"""Scheduler: selects the requests of each step, and rolls back the reservations of failed steps.

scheduler         schedules, commits and withdraws steps
caches            the KV, encoder and prefix-row caches, stepped together
step_builder      fills one step within its budgets
alignment         where chunks of a floating-point model may begin and end
step              data classes of a scheduled step
admission         rejects requests that can never be served
block_admission   delays requests for which too few KV blocks are free
request_queue     orders requests by priority, then by arrival
suspects          requests that took part in a step that failed
"""
