"""Requests: generations and embeddings, from question to answer.

request_service    takes a request, sends it, answers it once
admission          refuses requests before any work is spent on them
open_requests      the requests that are not answered yet
item_keys          the content keys of a request's images
preprocessing      whether items are processed at all
preprocess_queue   the items that a request lacks are processed, each once
engine_choice      which engine gets a request
hashed_prompt      what an engine would have to compute for a prompt
encoder_outputs    which images need not be encoded, and who has the others encoded
request_builder    the message that an engine gets
token_streams      tokens and rows on their way to the client
"""
