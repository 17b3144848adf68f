"""Turns a file into the item that the encoder takes, and text into tokens.

media             files of a request in the order of its prompt, and the items of each
item_processor    limits and keys before a cache lookup, items after decoding
decoder_set       keeps decoder processes alive                  confined_decoder
decoder_pool      decodes pictures in processes                  decoder_process
clip_decoders     decodes clips in processes                     clip_decoder_process
processor         scaled pixels to patches
checkpoint_processor  output of a checkpoint's image processor to items
slice_processor   decoded slices of clips to items
checkpoint_slices     slices in the form of a checkpoint's towers
mel               samples to the log-mel spectrogram
chat_template     messages to text
prompt            text to tokens, markers to placeholders
single_flight     does equal work once at a time
pool              worker threads for an event loop
fair_queue        a queue whose clients take turns
pixel_budget      limits the pixels decoded at a time
"""
