"""Finds the tokens of each request's prompt, and the text of each answer.

    prompt of ids, or of the reference model ──checked when the request comes
    text, messages ──a checkpoint's chat template and tokenizer, in a thread──> checked, before its items are looked for
    tokens of an answer ──> its text; of a long one in the thread

Belongs to the loop's thread. The thread does nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.cache.checkpoints.language import VISION_MODELS, Language, architecture_of
from mmcached.cache.checkpoints.tokenizer import FILE, CheckpointTokenizer
from mmcached.gateway.processing.chat_template import ChatTemplate
from mmcached.gateway.processing.media import in_prompt_order
from mmcached.gateway.processing.pool import Mailbox, WorkPool
from mmcached.gateway.processing.prompt import checked_ids, text_of, tokenise
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Wait
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.vocabulary import END_TOKEN_ID, TOKEN_IDS

TEXT_HERE_TOKENS = 512
"""Answers up to this length become text in the loop itself: that takes two milliseconds."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class TextWork:
    """A call in the thread, and its outcome: a result or an exception."""

    outcome: Any = None


class Prompts:
    """The prompts of one frontend.

    Args:
        mailbox: Takes the outcomes of the thread, with a `TextWork` as token.

    Raises:
        ConfigError: As `Language.of`, or the tokenizer cannot be read.
    """

    def __init__(self, config: ServiceConfig, mailbox: Mailbox) -> None:
        self._config = config
        self._checkpoint = CheckpointPrompts(config) if config.model.kind == "hf" else None
        self._threads = WorkPool("tokenizing", 1 if self._checkpoint else 0, mailbox)

    def check(self, request: OpenRequest) -> None:
        """Check a request's prompt as far as its text is not needed; set its tokens unless they need the thread.

        Raises:
            InvalidRequest: Too many images or clips, none to encode, or a prompt that cannot be served.
        """
        self._check_numbers(request)
        message, checkpoint = request.message, self._checkpoint
        if isinstance(message, Encode):
            self._check_encode(request)
            self._set_tokens(request, [TOKEN_IDS[medium.modality] for medium in request.media])
        elif checkpoint is None:
            self._set_tokens(request, self._of_reference(message, request))
            request.text = AnswerText(text_of, end_token_ids=frozenset({END_TOKEN_ID}))
        else:
            checkpoint.check(request, message)
            if not message.messages and not isinstance(message.prompt, str):
                self._set_tokens(request, checkpoint.checked(request, message, message.prompt))

    def find(self, request: OpenRequest) -> Verb[None]:
        """Set the tokens of a request that has none, and the order of its media.

        Raises:
            InvalidRequest: The prompt cannot be served.
        """
        message, checkpoint = request.message, self._checkpoint
        if not request.token_ids and checkpoint is not None and isinstance(message, Generate):
            token_ids = yield from self._in_thread(request, lambda: checkpoint.tokens_of(message))
            self._set_tokens(request, checkpoint.checked(request, message, token_ids))

    def answer_text(self, request: OpenRequest, token_ids: Sequence[int]) -> Verb[str | None]:
        """Return the text of a request's tokens; None if the checkpoint has no tokenizer."""
        text = request.text
        if text is None:
            return None
        if len(token_ids) - text.num_tokens <= TEXT_HERE_TOKENS or self._checkpoint is None:
            return text.finish(token_ids)
        return (yield from self._in_thread(request, lambda: text.finish(token_ids)))

    def close(self) -> None:
        """Drop queued work, and wait for the text that is being worked on."""
        self._threads.close()

    # ---- how

    def _set_tokens(self, request: OpenRequest, token_ids: list[int]) -> None:
        request.token_ids = token_ids
        request.media = in_prompt_order(request.media, token_ids, request.marks)

    def _in_thread(self, request: OpenRequest, call: Callable[[], T]) -> Verb[T]:
        work = TextWork()
        self._threads.submit(work, lambda is_wanted: call(), request.message.client_id)
        try:
            yield Wait({work})
        finally:
            self._threads.withdraw(work)
        if isinstance(work.outcome, Exception):
            raise work.outcome
        result: T = work.outcome
        return result

    def _check_numbers(self, request: OpenRequest) -> None:
        num_images, limit = len(request.media) - len(request.message.clips), self._config.max_images_per_request
        if num_images > limit:
            raise InvalidRequest("images", num_images, f"at most {limit} images per request")
        num_clips, limit = len(request.message.clips), self._config.limits.max_clips_per_request
        if num_clips > limit:
            raise InvalidRequest("clips", num_clips, f"at most {limit} (limits.max_clips_per_request)")

    def _check_encode(self, request: OpenRequest) -> None:
        media = request.media
        if not media:
            raise InvalidRequest("images", 0, "at least one image, video or sound is needed to encode")
        if self._checkpoint is not None and self._config.encoder.kind == "reference":
            field, value = media[0].field.partition("[")[0], len(media)
            limit = "none: the service's checkpoint encodes nothing; start it with --encoder.kind hf --encoder.path DIR"
            raise InvalidRequest(field, value, limit)

    def _of_reference(self, message: Generate, request: OpenRequest) -> list[int]:
        media = request.media
        if message.sampling is not None:
            raise InvalidRequest("sampling", "given", "none: the reference model takes the most likely token")
        if message.messages:
            raise InvalidRequest("messages", "given", "a prompt: the reference model has no chat template")
        if media and self._config.encoder.kind != "reference":
            field, value = media[0].field.partition("[")[0], len(media)
            raise InvalidRequest(field, value, "none: the service's checkpoint only encodes; ask it to encode")
        return tokenise(
            message.prompt,
            Counter(medium.modality for medium in media),
            max_model_len=self._config.max_model_len,
            max_tokens=message.max_tokens,
        )


class CheckpointPrompts:
    """Prompts and answers of a checkpoint; `tokens_of` is for the thread."""

    def __init__(self, config: ServiceConfig) -> None:
        folder = Path(config.model.path)
        self._language = Language.of(config)
        self._tokenizer = CheckpointTokenizer(folder)
        self._template = ChatTemplate(folder)
        self._adds_begin = architecture_of(folder) in VISION_MODELS
        self._max_model_len = config.max_model_len

    def check(self, request: OpenRequest, message: Generate) -> None:
        """Check all but the tokens; prepare the text of the answer.

        Raises:
            InvalidRequest: The checkpoint cannot serve it, or the text is far too long.
        """
        request.language, request.marks = self._language, self._language.marks
        for modality, number in Counter(medium.modality for medium in request.media).items():
            if modality not in self._language.marks:
                limit = "none: the checkpoint takes text, or the service was started without --encoder.kind hf"
                raise InvalidRequest(f"{modality}s", number, limit)
        if message.messages:
            if message.prompt:
                raise InvalidRequest("prompt", "given", "none beside messages")
            self._tokenizer.check_length(_num_characters(message), max_model_len=self._max_model_len, field="messages")
        elif isinstance(message.prompt, str):
            self._tokenizer.check_length(len(message.prompt), max_model_len=self._max_model_len)
        sampling = message.sampling
        stop, stop_token_ids = ((), ()) if sampling is None else (sampling.stop, sampling.stop_token_ids)
        if self._tokenizer.is_present:
            ends = self._language.stop_token_ids.union(stop_token_ids)
            request.text = AnswerText(self._tokenizer.text_of, stop, end_token_ids=ends)
        elif stop:
            raise InvalidRequest("sampling.stop", list(stop), f"stop_token_ids: the checkpoint has no {FILE}")

    def tokens_of(self, message: Generate) -> list[int]:
        """Return the tokens of a text or of messages, as Transformers' `apply_chat_template` does.

        Raises:
            InvalidRequest: The text is invalid, or the checkpoint takes no such messages.
        """
        if not message.messages:
            return self._tokenizer.ids_of(self._framed(str(message.prompt)))
        text = self._framed(self._template.render(message.messages))
        # A processor of a vision model adds special tokens to the text of a template, unless it begins with one.
        begin = self._template.begin_token
        adds = self._adds_begin and not (begin and text.startswith(begin))
        return self._tokenizer.ids_of(text, adds_special_tokens=adds)

    def _framed(self, text: str) -> str:
        frame, mark = self._language.frame, self._language.marks.get("image")
        return text if frame is None or mark is None else self._tokenizer.with_frames(text, frame, mark)

    def checked(self, request: OpenRequest, message: Generate, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt; raises `InvalidRequest` as `checked_ids`."""
        return checked_ids(
            token_ids,
            Counter(medium.modality for medium in request.media),
            self._language.marks,
            vocabulary_size=self._language.vocabulary_size,
            max_model_len=self._max_model_len,
            max_tokens=message.max_tokens,
        )


def _num_characters(message: Generate) -> int:
    contents = [each.content for each in message.messages]
    return sum(
        len(content) if isinstance(content, str) else sum(len(part.text) for part in content) for content in contents
    )
