"""Records of tensors as bytes, and records under keys in a ring.

object_store   records under string keys: the writer's index
object_reader  from a handle to a record
record_note    what lies behind a record, for a successor of the writer
codec          a record as bytes, and back in place
record_head    the head of an encoded record
tensor_bytes   tensors of numpy and torch as plain bytes
"""
