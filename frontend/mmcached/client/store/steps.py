"""What a verb of the store asks of a socket, so that blocking and awaiting clients share the verb itself.

A verb is a generator: it yields steps, is sent what came of each, and returns its result. `drive` performs the steps
one after the other; an error of a step is raised inside the verb, where it may become a miss.

>>> def verb() -> Verb[str]:
...     answer = yield Compute(lambda: "computed")
...     return f"{answer} here"
>>> drive(verb(), lambda step: step.fn())
'computed here'
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mmcached.client.links.conversation import Ask
from mmcached.wire.sockets.channels import Frame


@dataclass(frozen=True, slots=True)
class Greet:
    """Say hello and wait for a `Welcome`, which whoever hears what arrives has got then.

    Attributes:
        deadline: in seconds of the monotonic clock.
        is_patient: wait for a service that is not there yet.
    """

    deadline: float
    is_patient: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send a request and get `(message, payload)` of its answer.

    Attributes:
        deadline: in seconds of the monotonic clock; `timeout_s` before it the call began.
    """

    request: Ask
    deadline: float
    timeout_s: float
    payload: Sequence[Frame] = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """Call the user's function and get its result."""

    fn: Callable[[], Any]


Step = Greet | Exchange | Compute
ResultT = TypeVar("ResultT")
Verb = Generator[Step, Any, ResultT]


def drive(verb: Verb[ResultT], perform: Callable[[Step], Any]) -> ResultT:
    """Run a verb to its end in this thread."""
    try:
        step = next(verb)
        while True:
            try:
                outcome = perform(step)
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


async def drive_async(verb: Verb[ResultT], perform: Callable[[Step], Awaitable[Any]]) -> ResultT:
    """Run a verb to its end in this event loop; a cancelled step is raised inside the verb like any error."""
    try:
        step = next(verb)
        while True:
            try:
                outcome = await perform(step)
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
