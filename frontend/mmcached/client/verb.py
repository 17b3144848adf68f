"""Verbs: generators that contain the logic of a call, and leave all waiting to the client that drives them.

A verb yields steps, functions without arguments; it is sent the value that each step has returned, or the exception
that it has raised, so an error may become a miss. A blocking client calls each step. An asyncio client also awaits the
returned value, if it is awaitable. A call that has its result at once is a `ReadyResult`, which avoids the generator.

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


class ReadyResult(msgspec.Struct, Generic[ResultT]):
    """The result of a call that does not wait."""

    result: ResultT


Call = Verb[ResultT] | ReadyResult[ResultT]


def driver_of(call: Callable[..., Any], returns: Any = None) -> Callable[[CallableT], CallableT]:
    """Give a client's method the name, docstring and signature of the call that it drives.

    Args:
        returns: Return type of the method; by default the result type of the call's verb.
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
    if isinstance(verb, ReadyResult):
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
                del outcome  # may keep a lease alive
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        verb.close()  # after an interrupt between two steps, claims are dropped now, not at a garbage collection


async def drive_async(verb: Call[ResultT]) -> ResultT:
    """Run a verb to its end in this event loop; the cancellation of a step is raised inside the verb like any error."""
    if isinstance(verb, ReadyResult):
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
