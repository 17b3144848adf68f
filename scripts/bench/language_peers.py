"""Peers of `scripts.bench.language`: Transformers' continuous batching, and vLLM, on the CPU in float32."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

AnswerBatch = Callable[[Sequence[Sequence[int]]], int]
"""Answers prompts, all at once; returns the number of tokens made."""

MAX_REQUESTS = 32
MAX_STEP_TOKENS = 512


@contextlib.contextmanager
def generate_batch(folder: Path, max_tokens: int) -> Iterator[AnswerBatch]:
    """Yield a function that answers each prompt with `max_tokens` tokens, by `generate_batch` of Transformers."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    settings = transformers.GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1)
    batching = transformers.ContinuousBatchingConfig(
        num_blocks=MAX_REQUESTS, max_batch_tokens=MAX_STEP_TOKENS, use_cuda_graph=False, use_async_batching=False
    )

    def answer_all(asked: Sequence[Sequence[int]]) -> int:
        inputs = [list(prompt) for prompt in asked]
        outputs = model.generate_batch(inputs, generation_config=settings, continuous_batching_config=batching)
        return sum(len(output.generated_tokens) for output in outputs.values())

    yield answer_all


@contextlib.contextmanager
def vllm_engine(folder: Path, max_tokens: int) -> Iterator[AnswerBatch]:
    """Yield a function that answers each prompt with `max_tokens` tokens, by vLLM."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1")
    import vllm

    engine = vllm.LLM(str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=4096)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)

    def answer_all(asked: Sequence[Sequence[int]]) -> int:
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in asked]
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    try:
        yield answer_all
    finally:
        engine.llm_engine.engine_core.shutdown()
