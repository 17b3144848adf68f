"""Drives verbs: generators that say what a call does, and leave all waiting to the client that runs them.

A verb yields steps, functions without arguments; it is sent what each has returned, and gets what each has raised, so
an error may become a miss. A blocking client calls each step. An asyncio client also awaits what a step returns, if
that can be awaited. A call that finds at once what it looks for is `Done` instead, which spares the generator.

>>> def verb() -> Verb[str]:
...     answer = yield lambda: "computed"
...     return f"{answer} here"
>>> drive(verb())
'computed here'
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Generic, TypeVar

import msgspec

Step = Callable[[], Any]
ResultT = TypeVar("ResultT")
CallableT = TypeVar("CallableT", bound=Callable[..., Any])
Verb = Generator[Step, Any, ResultT]


class Done(msgspec.Struct, Generic[ResultT]):
    """The result of a call that has nothing to wait for."""

    result: ResultT


Call = Verb[ResultT] | Done[ResultT]


def driver_of(call: Callable[..., Any], returns: Any = None) -> Callable[[CallableT], CallableT]:
    """Give a client's method the name, text and signature of the call that it drives.

    Args:
        returns: what the method returns; by default what the call's verb does.
    """
    if returns is None:
        returns = call.__annotations__["return"].partition("[")[2].removesuffix("]")

    def describe(method: CallableT) -> CallableT:
        described: Any = wraps(call)(method)
        described.__annotations__ = {**call.__annotations__, "return": returns}
        described.__signature__ = inspect.signature(call).replace(return_annotation=returns)
        return described  # type: ignore[no-any-return]

    return describe


def drive(verb: Call[ResultT]) -> ResultT:
    """Run a verb to its end in this thread."""
    if isinstance(verb, Done):
        return verb.result
    try:
        step = next(verb)
        while True:
            try:
                outcome = step()
            except BaseException as error:
                step = verb.throw(error)
            else:
                step = verb.send(outcome)
                del outcome  # may hold what a lease depends on
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        verb.close()  # an interrupt between two steps: what the verb has claimed is dropped now, not at some collection


async def drive_async(verb: Call[ResultT]) -> ResultT:
    """Run a verb to its end in this event loop; a cancelled step is raised inside the verb like any error."""
    if isinstance(verb, Done):
        return verb.result
    try:
        step = next(verb)
        while True:
            try:
                outcome = step()
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            except BaseException as error:
                step = verb.throw(error)
            else:
                step = verb.send(outcome)
                del outcome
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        verb.close()
