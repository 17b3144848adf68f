"""Processing turns a file into the item that the encoder takes, and text into tokens.

item_processor    limits and keys before any cache is asked, items after decoding
decoder_pool      decodes files in processes                     decoder_process
processor         scaled pixels to patches
checkpoint_processor  what an image processor made to items
prompt            text to tokens, markers to placeholders
single_flight     does equal work once at a time
pool              threads that work for a loop
fair_queue        a queue whose clients take turns
pixel_budget      bounds the pixels that are decoded at a time
"""
