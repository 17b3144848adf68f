"""Trains a vision-language model with GRPO on a CPU: `grpo.py MODEL PICTURE… [--run-dir RUN_DIR]`.

    trainer ──pictures, seeds, decoder's weights──> rollout workers ──answers──> trainer: rewards, update of the decoder

Each answer is a request of its own; the answers about one picture are spread over the workers. With a run directory the
workers and the trainer share processed inputs and outputs of the frozen tower: a picture is processed once and encoded
once, however many answers and updates it is used for. Neither pixels nor features travel with the requests.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmcached.client import Client
from mmcached.integrations.processed_inputs import ProcessedItem, ProcessedItems, name_of
from mmcached.integrations.transformers import cached_image_features

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is in this picture?"}]}]
GROUP, NUM_WORKERS, NUM_TOKENS, PICTURES_PER_UPDATE = 8, 2, 16, 2
PACKAGES = ("transformers", "tokenizers", "torch", "torchvision", "numpy", "pillow")
Ask = tuple[str, int]  # the picture and the seed of an answer


@dataclass(frozen=True, slots=True)
class Update:
    """Token ids of each answer, group by group; runs of processor and tower since the start, in all processes."""

    answers: list[list[int]]
    mean_reward: float
    processor_runs: int
    tower_runs: int
    seconds: float


class Policy:
    """A model with a frozen tower in one process; `stack` closes what it opens. Without `run_dir` it shares nothing."""

    def __init__(self, checkpoint: Path, run_dir: Path | None, stack: ExitStack) -> None:
        torch.set_num_threads(1)  # alike in all processes: the tower's bits depend on it
        self.model = AutoModelForImageTextToText.from_pretrained(checkpoint).eval().requires_grad_(False)
        self.processor = AutoProcessor.from_pretrained(checkpoint)
        tokenizer, inner = self.processor.tokenizer, self.model.model
        self.never = [each for each in tokenizer.all_special_ids if each != tokenizer.eos_token_id]
        self.decoder = torch.nn.ModuleDict({"model": inner.language_model, "head": self.model.lm_head})
        self.items = self.features = None
        if run_dir is not None:
            client = stack.enter_context(Client(run_dir, name="grpo"))
            self.items = ProcessedItems(client, identity(self.processor, checkpoint))
            self.features = stack.enter_context(cached_image_features(self.model, client))
        self.processor_runs = self.tower_calls = 0
        of_tower = inner.get_image_features

        @functools.wraps(of_tower)
        def without_gradients(*args: Any, **kwargs: Any) -> Any:
            self.tower_calls += 1
            with torch.no_grad():  # with gradients the call would bypass the store, and a frozen tower needs none
                return of_tower(*args, **kwargs)

        inner.get_image_features = without_gradients

    def runs(self) -> tuple[int, int]:
        """Return how often processor and tower have run here."""
        shared = self.features
        return self.processor_runs, shared.num_encoded + shared.num_bypassed if shared else self.tower_calls

    def inputs(self, picture: Path) -> dict[str, torch.Tensor]:
        process = functools.partial(self._process, file := picture.read_bytes())
        item = process() if self.items is None else self.items.get_or_process(name_of(file), process)
        return {**item.counts, **item.pixels}

    def answer(self, ask: Ask) -> list[int]:
        inputs = self.inputs(Path(ask[0]))
        torch.manual_seed(ask[1])
        sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": NUM_TOKENS, "suppress_tokens": self.never}
        tokens: list[int] = self.model.generate(**inputs, **sampling)[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def log_probs(self, picture: Path, answer: Sequence[int]) -> torch.Tensor:
        """Return the log probability of each token of an answer; shape (tokens,)."""
        inputs, tokens = self.inputs(picture), torch.tensor([answer])
        for name, added in (("input_ids", tokens), ("attention_mask", tokens**0), ("mm_token_type_ids", tokens * 0)):
            if name in inputs:
                inputs[name] = torch.cat([inputs[name], added], 1)
        logits: torch.Tensor = self.model(**inputs).logits[:, -len(answer) - 1 : -1]
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).flatten()

    def rewards(self, answers: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return each answer's share of lower-case letters; put your reward here."""
        texts = [self.processor.tokenizer.decode(answer) for answer in answers]
        return torch.tensor([sum(letter.islower() for letter in text) / max(1, len(text)) for text in texts])

    def _process(self, file: bytes) -> ProcessedItem:
        self.processor_runs += 1
        text = self.processor.apply_chat_template(QUESTION, add_generation_prompt=True)
        counts = dict(self.processor(text=text, images=Image.open(BytesIO(file)).convert("RGB"), return_tensors="pt"))
        return ProcessedItem(counts, {"pixel_values": counts.pop("pixel_values")})


def identity(processor: Any, checkpoint: Path) -> dict[str, Any]:
    """Return all that a processed input depends on beside the picture's file."""
    files = [file for file in checkpoint.iterdir() if file.suffix in (".json", ".jinja", ".txt", ".model")]
    names = {file.name: name_of(file.read_bytes()) for file in files}
    versions = {package: version(package) for package in PACKAGES}
    return {"class": type(processor).__qualname__, "files": names, "question": QUESTION, "versions": versions}


def serve_rollouts(checkpoint: Path, run_dir: Path | None) -> None:
    """Answer each line of the input with the decoder that the trainer has saved: the program of a worker."""
    with ExitStack() as stack:
        policy = Policy(checkpoint, run_dir, stack)
        print('"ready"', flush=True)
        for asks, weights in map(json.loads, sys.stdin):
            policy.decoder.load_state_dict(torch.load(weights))
            print(json.dumps([[policy.answer(ask) for ask in asks], policy.runs()]), flush=True)


@contextmanager
def started_workers(checkpoint: Path, run_dir: Path | None) -> Iterator[list[Popen[str]]]:
    command = [sys.executable, __file__, "--worker", str(checkpoint), *(["--run-dir", str(run_dir)] if run_dir else [])]
    with ExitStack() as stack:
        yield [stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True)) for _ in range(NUM_WORKERS)]


def receive(worker: Popen[str]) -> Any:
    assert worker.stdout is not None
    return json.loads(worker.stdout.readline())


def roll_out(workers: list[Popen[str]], asks: list[Ask], weights: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return the answers in the order of `asks`, and each worker's runs of processor and tower."""
    for place, worker in enumerate(workers):
        assert worker.stdin is not None
        print(json.dumps([asks[place :: len(workers)], str(weights)]), file=worker.stdin, flush=True)
    answers: list[list[int]] = [[]] * len(asks)
    runs: list[list[int]] = [[]] * len(workers)
    for place, worker in enumerate(workers):
        answers[place :: len(workers)], runs[place] = receive(worker)
    return answers, runs


def updates(checkpoint: Path, pictures: Sequence[Path], run_dir: Path | None, num_updates: int) -> Iterator[Update]:
    """Train on the pictures, two for each update, with a group of answers about each; yield after each update."""
    with TemporaryDirectory() as folder, started_workers(checkpoint, run_dir) as workers, ExitStack() as stack:
        policy, weights = Policy(checkpoint, run_dir, stack), Path(folder) / "decoder.pt"
        policy.decoder.requires_grad_(True)
        optimizer = torch.optim.AdamW(policy.decoder.parameters(), lr=1e-3)
        assert [receive(worker) for worker in workers] == ["ready"] * NUM_WORKERS
        for step in range(num_updates):
            start = time.perf_counter()
            places = range(step * PICTURES_PER_UPDATE, (step + 1) * PICTURES_PER_UPDATE)
            chosen = [pictures[place % len(pictures)] for place in places for _ in range(GROUP)]
            torch.save(policy.decoder.state_dict(), weights)
            asks = [(str(picture), step * len(chosen) + number) for number, picture in enumerate(chosen)]
            answers, runs = roll_out(workers, asks, weights)
            rewards = policy.rewards(answers).view(-1, GROUP)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            for picture, answer, advantage in zip(chosen, answers, advantages.flatten(), strict=True):
                (-(advantage * policy.log_probs(picture, answer)).mean() / len(chosen)).backward()
            optimizer.step()
            optimizer.zero_grad()
            processor_runs, tower_runs = map(sum, zip(*runs, policy.runs(), strict=True))
            yield Update(answers, float(rewards.mean()), processor_runs, tower_runs, time.perf_counter() - start)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("pictures", type=Path, nargs="*")
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--worker", action="store_true", help="be a rollout worker: the trainer starts these")
    given = parser.parse_args()
    if given.worker:
        serve_rollouts(given.checkpoint, given.run_dir)
        sys.exit()
    digest, seconds = hashlib.sha256(), 0.0
    for update in updates(given.checkpoint, given.pictures, given.run_dir, given.updates):
        digest.update(repr(update.answers).encode())
        seconds += update.seconds
        print(f"mean reward {update.mean_reward:.3f}", flush=True)
    print(f"{given.updates * PICTURES_PER_UPDATE * GROUP} answers, {digest.hexdigest()[:16]}")
    print(f"processor runs: {update.processor_runs}; tower runs: {update.tower_runs}; {seconds:.1f} s")
