"""Processing turns a file into the item that the encoder takes, and text into tokens.

media             the files of a request in the order of its prompt, and the items of each
item_processor    limits and keys before any cache is asked, items after decoding
decoder_set       keeps decoders alive, blames what ends them   confined_decoder
decoder_pool      decodes pictures in processes                  decoder_process
clip_decoders     decodes clips in processes                     clip_decoder_process
processor         scaled pixels to patches
checkpoint_processor  what an image processor made to items
slice_processor   decoded slices of clips to items
checkpoint_slices     those that a checkpoint's towers take
mel               samples to the log-mel spectrogram
prompt            text to tokens, markers to placeholders
single_flight     does equal work once at a time
pool              threads that work for a loop
fair_queue        a queue whose clients take turns
pixel_budget      bounds the pixels that are decoded at a time
"""
