"""Requests: generations and embeddings, from question to answer.

request_service    takes a request, runs its verb, answers it once
request_verbs      what a request does until its answer, as a generator
waits              what requests wait for, and which need wait no more
admission          refuses requests before any work is spent on them
open_requests      the requests that are not answered yet
item_making        the items that a request lacks are made
item_keys          the content keys of a request's files and slices
item_work          files are processed, each once at a time
item_counts        items of each modality, counted
clip_queue         when clips are opened and decoded
clip_work          what is done with a clip: cut into slices, or some of them made again
clip_room          how much is made of clips at a time
clip_records       which slices a clip has, in the store
encoder_outputs    which items need not be encoded, and who has the others encoded
submission         a request goes to an engine, with its items
engine_choice      which engine gets a request
hashed_prompt      what an engine would have to compute for a prompt
inline_room        how much travels beside the store at a time
request_builder    the message that an engine gets
token_streams      tokens and rows on their way to the client
"""
