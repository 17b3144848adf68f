"""A request of a client passes through here from its question to its one answer.

request_desk      accepts requests and answers them
preparing         brings every item that a request needs
request_builder   what the engine is told of a request
open_requests     requests that have no answer yet
token_streams     tokens and rows on their way to the client
"""
