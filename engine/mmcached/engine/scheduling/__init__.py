"""The scheduler chooses the requests of the next step and takes back what a failed step had reserved.

scheduler         schedules, commits and withdraws steps
caches            leads KV blocks, encoder outputs and prefix rows through a step together
step_builder      fills one step within its budgets
step              the value that a scheduled step is
admission         refuses requests that can never be served
block_admission   refuses, for now, requests that find no KV blocks
request_queue     orders requests by priority, then by arrival
suspects          requests that took part in a step that failed
"""
