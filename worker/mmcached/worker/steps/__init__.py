"""Execution of one plan.

runner        executes a plan
item_outputs  puts encoder outputs of items into the encoder cache
output_counts counts items by modality
prefix_rows   writes and reads the hidden states that a plan names
step_result   collects the results of a step
"""
