"""Plays with two engines that share a store: updates, sleep, adapters, restarts with other flags, in a random order.

Each answer, and each output of the tower in an engine's cache, must have the bits of those of an engine without the
connector that has the same weights and flags.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.prompts import messages
from tests.hosts.vllm.engines import EngineProcess, joined, write_adapter

WRITABLE = ("call", "apply", "reload", "load", "load each", "in place", "inference mode", "set data", "copy data")
"""Ways of `engine_child.WAYS`, where the weights are not packed."""
FACTORS = (1.0, 2.0, 0.5)
MAX_ASKED = 3
LORA = {"enable_lora": True, "max_lora_rank": 8}
Weights = tuple[float, float, float]
"""Factors of the tower's head, of its rest, and of the decoder."""


@dataclass(frozen=True)
class Flags:
    """How an engine is started.

    Attributes:
        adapters: Names of the adapters that it takes.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[str, ...] = ("", "decoder")


FLAGS: Mapping[str, Flags] = {
    "usual": Flags(LORA),
    "bfloat16": Flags({"dtype": "bfloat16"}, adapters=("",)),
    "small images": Flags(LORA | {"mm_processor_kwargs": {"max_pixels": 112 * 112}}),
    "other instructions": Flags(LORA, {"ATEN_CPU_CAPABILITY": "avx2"}),
    "adapters of the tower": Flags(
        LORA | {"enable_tower_connector_lora": True}, adapters=("", "decoder", "tower", "tower")
    ),
    "packed": Flags(LORA | {"packs": True}),
}


class Player:
    """One of the engines that share, and what it should be."""

    def __init__(self, start: Callable[[str], EngineProcess], flags: str) -> None:
        self._start = start
        self.restart(flags)

    def restart(self, flags: str) -> None:
        self.flags = flags
        self.engine = self._start(flags)
        self.weights: Weights = (1.0, 1.0, 1.0)
        self.seen: set[str] = set()

    @property
    def ways(self) -> Sequence[str]:
        return ("reload",) if FLAGS[self.flags].options.get("packs") else WRITABLE

    def write(self, part: str, factor: float, way: str) -> None:
        self.engine.do("write", part=part, factor=factor, way=way)
        self.written(part, factor)

    def written(self, part: str, factor: float) -> None:
        head, rest, decoder = self.weights
        self.weights = (
            factor if part in ("head", "tower") else head,
            factor if part in ("rest", "tower") else rest,
            factor if part == "decoder" else decoder,
        )
        self.seen.clear()


class Play:
    """A game with one seed.

    Args:
        flags: Names in `FLAGS`: with the first both engines start.
    """

    def __init__(self, checkpoint: Path, run_dir: Path, folder: Path, flags: Sequence[str], seed: int) -> None:
        self._checkpoint = checkpoint
        self._run_dir = run_dir
        self._folder = folder
        self._flags = flags
        self._draw = random.Random(seed)
        self._messages = list(messages(24, seed=seed, images=range(12)))
        self._stack = ExitStack()
        self._num_started = 0
        self._references: dict[str, Player] = {}
        self._answers: dict[tuple[str, Weights, str, int], Any] = {}
        self._bits: dict[tuple[str, tuple[float, ...]], dict[str, str]] = {}
        layers = {"decoder": "model.layers.0.self_attn.q_proj", "tower": "visual.blocks.1.attn.proj"}
        self._adapters = {
            name: str(write_adapter(checkpoint, folder / name, layer=layer)) for name, layer in layers.items()
        } | {"": ""}
        self.done: list[str] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Play:
        with ExitStack() as stack:
            self._stack = stack
            self._players = [Player(self._sharing, self._flags[0]) for _ in range(2)]
            self._reference(self._flags[0])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, num_moves: int) -> None:
        moves = [self.ask] * 4 + [self.ask_both] * 3 + [self.write] * 4 + [self.sleep, self.interrupt, self.adapter]
        if len(self._flags) > 1:
            moves.append(self.restart)
        for _ in range(num_moves):
            self._draw.choice(moves)(self._draw.choice(self._players))
        for player in self._players:
            self.ask(player)

    # ---- moves

    def ask(self, player: Player) -> None:
        chosen, adapter = self._chosen(player)
        self._check(player, chosen, adapter, player.engine.do("ask", **self._question(chosen, adapter)))

    def ask_both(self, player: Player) -> None:
        """Ask both engines at once, so that one may wait for what the other encodes."""
        asked = [(each, *self._chosen(each)) for each in self._players]
        for each, chosen, adapter in asked:
            each.engine.begin("ask", **self._question(chosen, adapter))
        answers = [each.engine.answer() for each, _, _ in asked]
        for (each, chosen, adapter), answer in zip(asked, answers, strict=True):
            self._check(each, chosen, adapter, answer)

    def write(self, player: Player) -> None:
        part, factor, way = self._change(player)
        self._note(player, f"{part} x {factor} by {way}")
        player.write(part, factor, way)
        if self._draw.random() < 0.7:
            self.ask(player)

    def sleep(self, player: Player) -> None:
        """Sleep and wake up; at level 2 without the tower's weights, which may be written before the next question."""
        can_lose = "call" in player.ways
        level, tags = self._draw.choice((1, 2) if can_lose else (1,)), self._draw.choice([None, "each"])
        self._note(player, f"sleeps at level {level}, wakes up by {tags}")
        player.engine.do("sleep", level=level)
        for each in (["weights"], ["kv_cache"]) if tags else (None,):
            player.engine.do("wake_up", tags=each)
        if level == 2:
            player.written("tower", 0.0)
        if self._draw.random() < 0.5:
            self.ask(player)
        if level == 2:
            way = self._draw.choice(player.ways)
            self._note(player, f"tower is back by {way}")
            player.write("tower", 1.0, way)

    def interrupt(self, player: Player) -> None:
        """Change weights in the middle of requests, which are dropped."""
        chosen, _ = self._chosen(player)
        part, factor, way = self._change(player)
        steps = self._draw.randrange(4)
        self._note(player, f"{part} x {factor} by {way} after {steps} steps of {chosen}")
        asked = [self._messages[number] for number in chosen]
        player.engine.do("interrupt", messages=asked, num_steps=steps, part=part, factor=factor, way=way)
        player.written(part, factor)
        self.ask(player)

    def adapter(self, player: Player) -> None:
        """Load or unload an adapter."""
        name = self._draw.choice(FLAGS[player.flags].adapters)
        command = self._draw.choice(("add_lora", "remove_lora"))
        if name:
            self._note(player, f"{command} {name}")
            player.engine.do(command, adapter=self._adapters[name])

    def restart(self, player: Player) -> None:
        flags = self._draw.choice(self._flags)
        self._note(player, f"starts with {flags}")
        player.engine.stop()
        player.restart(flags)

    # ---- how

    def _change(self, player: Player) -> tuple[str, float, str]:
        part = self._draw.choice(("head", "rest", "tower", "tower", "decoder", "decoder"))
        return part, self._draw.choice(FACTORS), self._draw.choice(player.ways)

    def _chosen(self, player: Player) -> tuple[list[int], str]:
        numbers = self._draw.sample(range(len(self._messages)), self._draw.randint(1, MAX_ASKED))
        return numbers, self._draw.choice(FLAGS[player.flags].adapters)

    def _question(self, chosen: Sequence[int], adapter: str) -> dict[str, Any]:
        return {"messages": [self._messages[number] for number in chosen], "adapter": self._adapters[adapter]}

    def _check(self, player: Player, chosen: list[int], adapter: str, found: Mapping[str, Any]) -> None:
        self._note(player, f"answers {chosen} with adapter {adapter!r}")
        answers, bits = self._right(player.flags, player.weights, adapter, chosen)
        history = "\n".join(self.done[-40:])
        wrong = [name for name, digest in found["bits"].items() if bits.get(name, digest) != digest]
        assert not wrong, f"other bits of {len(wrong)} of {len(found['bits'])} items with {player.weights}:\n{history}"
        assert found["answers"] == answers, (
            f"other answers with {player.weights}:\n{history}\n{found['answers']}, {answers}"
        )
        new = found["bits"].keys() - player.seen
        player.seen |= new
        self.counts += Counter(
            items=len(new), encoded=len(found["encoded"]), compared=len(found["bits"].keys() & bits.keys())
        )

    def _right(
        self, flags: str, weights: Weights, adapter: str, chosen: Sequence[int]
    ) -> tuple[list[Any], Mapping[str, str]]:
        """Return the answers of an engine without the connector, and the bits of all items that it has encoded."""
        bits = self._bits.setdefault((flags, weights[:2]), {})
        missing = [number for number in chosen if (flags, weights, adapter, number) not in self._answers]
        if missing:
            reference = self._reference(flags)
            for part, factor, now in zip(("head", "rest", "decoder"), weights, reference.weights, strict=True):
                if factor != now:
                    reference.write(part, factor, reference.ways[0])
            found = reference.engine.do("ask", **self._question(missing, adapter))
            bits |= found["bits"]
            for number, answer in zip(missing, found["answers"], strict=True):
                self._answers[flags, weights, adapter, number] = answer
        return [self._answers[flags, weights, adapter, number] for number in chosen], bits

    def _reference(self, flags: str) -> Player:
        if flags not in self._references:
            self._references[flags] = Player(self._alone, flags)
        return self._references[flags]

    def _note(self, player: Player, what: str) -> None:
        self.done.append(f"engine {self._players.index(player)}: {what}")

    def _sharing(self, flags: str) -> EngineProcess:
        return self._started(flags, joined(self._run_dir))

    def _alone(self, flags: str) -> EngineProcess:
        return self._started(flags, {})

    def _started(self, flags: str, options: Mapping[str, Any]) -> EngineProcess:
        self._num_started += 1
        log = self._folder / f"{self._num_started}.log"
        chosen = FLAGS[flags]
        engine = EngineProcess(self._checkpoint, log, {**chosen.options, **options}, chosen.variables)
        self._stack.callback(engine.stop)
        return engine
