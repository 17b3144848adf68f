"""An encoder turns the record of one item into its outputs: named tensors, of that item alone.

encoder     what the worker asks of any of them
reference   the reference model's, in exact integers
"""
