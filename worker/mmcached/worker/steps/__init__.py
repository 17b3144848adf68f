"""One plan, from its items to its output.

runner        executes a plan
item_outputs  puts outputs of items into the encoder cache
output_counts items of each modality, counted
prefix_rows   reads and writes the hidden states that a plan names
read_ledger   leases that a step still reads under
step_result   what a step has made so far
stopwatch     how long work of a device takes
"""
