"""Requests: generations and embeddings, from question to answer.

request_service    takes a request, sends it, answers it once
admission          refuses requests before any work is spent on them
open_requests      the requests that are not answered yet
item_keys          the content keys of a request's files
preprocessing      whether items are processed at all
item_counts        items of each modality, counted
preprocess_queue   the items that a request lacks are processed
item_work          files are processed, each once at a time
clip_queue         when clips are opened and decoded
clip_work          what is done with a clip: cut into slices, or some of them made again
clip_room          how much is made of clips at a time
clip_records       which slices a clip has, in the store
engine_choice      which engine gets a request
hashed_prompt      what an engine would have to compute for a prompt
encoder_outputs    which items need not be encoded, and who has the others encoded
inline_items       how much travels beside the store at a time
item_pins          what is kept in the store for open requests
submission         a request goes to an engine, with its items
request_builder    the message that an engine gets
token_streams      tokens and rows on their way to the client
"""
