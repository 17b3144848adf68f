"""Requests: generations and embeddings, from message to answer; start at `request_service`, then `request_verbs`.

request_service    accepts a request, runs its verb, answers it once
request_verbs      serves one request, as a generator
waits              the events that requests wait for
admission          refuses requests before any work is spent on them
prompts            tokens of prompts, texts of answers
open_requests      the requests without an answer
item_making        processes the items that a request lacks
item_keys          the content keys of a request's files and slices
item_work          processes files, each once at a time
item_counts        numbers of items by modality
clip_queue         when clips are opened and decoded
clip_work          cuts clips into slices, and makes slices again
clip_room          limits the bytes of clips' items
clip_records       the slices of clips, in the store
encoder_outputs    items that need not be encoded, and the requests that encode the others
submission         sends a request with its items to an engine
engine_choice      chooses the engine of a request
hashed_prompt      the tokens that an engine would have to compute for a prompt
inline_room        limits the bytes that travel as frames
request_builder    builds the message to an engine
token_streams      tokens and rows on their way to clients       open_stream: those of one generation
"""
