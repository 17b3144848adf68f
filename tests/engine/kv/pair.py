"""The KV cache manager and its plain model side by side, led through one history and compared after every action.

    actions on one request    admit, look, run, sample, preempt, finish, cache
    on all                    add, begin, launch, commit, withdraw, reset, epoch

Whoever leads it chooses an action and a number; the number chooses the request and all that is open. What cannot be
done now is passed over, except that every now and then something is asked for that must be refused. Compared are block
ids handed out, hits and their lengths, refusals and errors, free order, references, tables, what is published, and what
every living request would be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.engine import KVCacheBlocks, Request, RequestStatus
from mmcached.engine.kv.config import ChunkedLocalAttentionSpec, MambaSpec
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID
from tests.engine.builders import generate, image
from tests.engine.kv.builders import Spec, manager_of
from tests.engine.kv.dice import Dice
from tests.engine.kv.integrity import check_kv
from tests.models.kv_model import NULL, Group, KVModel

MAX_ALIVE = 6
MAX_PROMPT = 30
ACTIONS = [
    *("admit", "run") * 8,
    *("add", "preempt") * 4,
    *("sample",) * 3,
    *("begin", "commit", "finish") * 2,
    *("withdraw", "launch", "look", "cache", "reset", "epoch"),
]
ITEMS = {0: ("a", 2), 1: ("a", 3), 2: ("b", 2)}  # by variant of a request: content key, offset

Hit = tuple[tuple[list[list[int]], int], KVCacheBlocks]  # as the model gave it, and as the product did


@dataclass(frozen=True)
class Setting:
    """How both are made; in the order of `of`."""

    num_blocks: int
    groups: tuple[Group, ...]
    enable_caching: bool = True
    use_eagle: bool = False
    num_hash_lookahead_tokens: int = 0
    max_model_len: int = 1000


def token_at(position: int, family: int) -> int:
    """Three families of sequences, equal at first, so that prefixes are shared; outputs meet prompts."""
    return position if position < 13 else 100 * family + position


def request_of(request_id: int, dice: Dice, max_prompt: int) -> Request:
    """Return a prompt; some have something besides their tokens that decides what they may share."""
    family, variant = dice.below(3), dice.below(20)
    length = 1 + max(dice.below(max_prompt), dice.below(max_prompt))
    token_ids = [token_at(position, family) for position in range(length)]
    items = [image(*ITEMS[variant], 3)] if variant in ITEMS and length > 5 else []
    if items:
        token_ids[2:6] = [IMAGE_TOKEN_ID] * 4  # so that the place of the item is all that differs
    tenant, is_blind = "x" if variant == 3 else "", variant == 6
    request = generate(request_id, token_ids, items, tenant=tenant, skip_reading_prefix_cache=is_blind)
    request.lora = LoraKey("x", "") if variant == 4 else None
    request.prompt_embeds = {5: b"row"} if variant == 5 and length > 5 else {}
    request.status = RequestStatus.RUNNING
    return request


def outcome_of(act: Callable[[], Any]) -> Any:
    """Return what it returns, or the kind of error that it raises."""
    try:
        return act()
    except (ValueError, LocalProtocolError) as error:
        return ValueError if isinstance(error, ValueError) else LocalProtocolError


def spec_of(group: Group) -> Spec:
    if group.state:
        return MambaSpec(group.block_size, group.state)
    if group.chunk is not None:
        return ChunkedLocalAttentionSpec(group.block_size, group.chunk)
    return group.block_size if group.window is None else (group.block_size, group.window)


class Pair:
    """Both, and the requests that both are asked about.

    Attributes:
        parts: requests that take part in the open step, each with the number of tokens it had computed before.
        seen: how often what happened.
    """

    def __init__(self, setting: Setting) -> None:
        specs = [spec_of(group) for group in setting.groups]
        options: dict[str, Any] = {
            "enable_caching": setting.enable_caching,
            "use_eagle": setting.use_eagle,
            "num_hash_lookahead_tokens": setting.num_hash_lookahead_tokens,
            "max_model_len": setting.max_model_len,
        }
        self.setting = setting
        self.manager = manager_of(setting.num_blocks, *specs, **options)
        self.model = KVModel(setting.num_blocks, setting.groups, **options)
        self.requests: list[Request] = []
        self.hits: dict[int, Hit] = {}  # looked up and not taken yet, by request id
        self.parts: list[tuple[Request, int]] = []
        self.num_added = self.num_steps = 0
        self.seen: Counter[str] = Counter()

    def do(self, action: str, number: int) -> None:
        """Do it, if it can be done now; compare everything."""
        dice = Dice(number)
        on_all = getattr(self, f"_{action}", None)
        candidates = {
            "admit": [each for each in self.requests if not self._is_held(each)],
            "look": [each for each in self.requests if not self._is_held(each)],
            "run": [each for each in self._held() if each.num_computed_tokens < each.num_tokens],
            "sample": [each for each in self._held() if each.num_computed_tokens == each.num_tokens],
            "preempt": [*self._held(), *self._relied_on()],
            "finish": self.requests,
            "cache": [each for each in self._held() if not self._takes_part(each)],
        }
        assert on_all is not None
        if action not in candidates:
            has_acted = on_all(dice)
        elif candidates[action]:
            has_acted = on_all(candidates[action][dice.below(len(candidates[action]))], dice)
        else:
            return
        if has_acted is not False:
            self.seen[action] += 1
            self._compare()

    def _is_held(self, request: Request) -> bool:
        return request.request_id in self.model.tables

    def _held(self) -> Iterator[Request]:
        return (each for each in self.requests if self._is_held(each))

    def _relied_on(self) -> list[Request]:
        """Return, more than once each, those who would take others with them if they left the step being built."""
        return [each for each in self.requests for _ in range(3 * len(self.model.sharers(each.request_id)))]

    def _takes_part(self, request: Request) -> bool:
        return any(each is request for each, _ in self.parts)

    # ---- requests

    def _add(self, dice: Dice) -> bool:
        if len(self.requests) == MAX_ALIVE:
            return False
        self.requests.append(request_of(self.num_added, dice, min(MAX_PROMPT, self.setting.max_model_len)))
        self.num_added += 1
        return True

    def _look(self, request: Request, dice: Dice) -> None:
        """Look up now, and take the hit when the request is admitted; much may happen until then."""
        self.hits[request.request_id] = self.model.lookup(request), self.manager.get_computed_blocks(request)[0]

    def _admit(self, request: Request, dice: Dice) -> None:
        if request.request_id not in self.hits:
            self._look(request, dice)
        hit = self.hits.pop(request.request_id)
        (tables, num_hit_tokens), _ = hit
        self.seen["hit"] += num_hit_tokens > 0
        self.seen["hit with null blocks"] += any(NULL in table for table in tables)
        self._allocate(request, dice, hit)

    def _run(self, request: Request, dice: Dice) -> None:
        """Go on; one that holds blocks may try to put a hit before them."""
        is_greedy = dice.is_one_in(30)
        found = self.model.lookup(request), self.manager.get_computed_blocks(request)[0]
        self._allocate(request, dice, found if is_greedy and found[0][1] else None)

    def _allocate(self, request: Request, dice: Dice, hit: Hit | None) -> None:
        """Ask for a chunk; now and then with guesses, slots for a drafter, or what is delivered from outside."""
        (tables, num_hit_tokens), found = hit or (([], 0), None)
        start = request.num_computed_tokens + num_hit_tokens
        num_left = max(1, request.num_tokens - start)
        num_external = min(num_left - 1, dice.below(9)) if not self._is_held(request) and dice.is_one_in(6) else 0
        num_new = min(num_left - num_external, 1 + dice.below(16))
        num_drafts = dice.below(4) if num_external + num_new == num_left and dice.is_one_in(3) else 0
        if num_new and dice.is_one_in(40):
            num_new = num_drafts = 0
        options: dict[str, Any] = {
            "num_draft_tokens": num_drafts + (dice.below(num_new + 1) if dice.is_one_in(8) else 0),
            "num_lookahead_tokens": (0, 0, 0, 1, 3)[dice.below(5)],
            "delay_cache_blocks": dice.is_one_in(12),
        }
        before = len(self.model.published), self.model.ref_cnt(NULL)
        expected = outcome_of(
            lambda: self.model.allocate(
                request,
                num_new + num_drafts,
                (tables, num_hit_tokens) if found is not None else None,
                num_external_tokens=num_external,
                **options,
            )
        )
        given = outcome_of(
            lambda: self.manager.allocate_slots(
                request,
                num_new + num_drafts,
                num_hit_tokens,
                found,
                num_external_computed_tokens=num_external,
                **options,
            )
        )
        if isinstance(given, KVCacheBlocks):
            given = list(given.get_block_ids())
        assert given == expected, f"product: {given}, model: {expected}"
        if not isinstance(expected, list):
            self.seen["refused" if expected is None else f"{expected.__name__} for slots"] += 1
            return
        end = start + num_external + num_new
        self._count(before, num_external, num_drafts, end + options["num_lookahead_tokens"] + num_drafts)
        if self.model.step is not None:
            self.seen["took over what is only reserved"] += (
                hit is not None and request.request_id in self.model.step.writers
            )
            self.parts.append((request, start))
        request.num_computed_tokens = end

    def _count(self, before: tuple[int, int], num_external: int, num_drafts: int, num_tokens: int) -> None:
        num_published, num_null = before
        self.seen["evicted"] += len(self.model.published) < num_published
        self.seen["window moved on"] += self.model.ref_cnt(NULL) > num_null
        self.seen["delivered from outside"] += num_external > 0
        self.seen["guesses"] += num_drafts > 0
        self.seen["cut at the longest sequence"] += num_tokens > self.setting.max_model_len

    def _sample(self, request: Request, dice: Dice) -> bool:
        """Let the next tokens be known: one, or as many as a drafter guessed right, the last of them a surprise."""
        num_new = min(1 + dice.below(3), self.setting.max_model_len - request.num_tokens)
        for _ in range(num_new):
            request.append_output_token(token_at(request.num_tokens, dice.below(3)))
        if num_new > 0 and dice.is_one_in(5):
            request.token_ids[-1] = 999
        return num_new > 0

    def _preempt(self, request: Request, dice: Dice) -> None:
        """Free it; if others count on it, free them first."""
        self._count_free(request)
        expected = outcome_of(lambda: self.model.free(request))
        assert outcome_of(lambda: self.manager.free(request)) == expected
        if expected is not None:
            self._compare()
            self.seen["freed with others"] += 1
            sharers = self.model.sharers(request.request_id)
            for sharer in [each for each in self.requests if each.request_id in sharers]:
                self._preempt(sharer, dice)
            self._preempt(request, dice)
            return
        request.num_computed_tokens = 0
        self.parts = [part for part in self.parts if part[0] is not request]

    def _count_free(self, request: Request) -> None:
        if self.model.step is not None and self._takes_part(request):
            self.seen["freed in flight" if self.model.step.is_launched else "preempted within its step"] += 1

    def _finish(self, request: Request, dice: Dice) -> None:
        self._preempt(request, dice)
        self.requests.remove(request)
        self.hits.pop(request.request_id, None)
        self.manager.free_block_hashes(request)

    def _cache(self, request: Request, dice: Dice) -> bool:
        if request.request_id in self.model.lost:
            return False
        num_tokens = dice.below(request.num_computed_tokens + 1)
        for each in (self.manager, self.model):
            each.cache_blocks(request, num_tokens)
        return True

    # ---- steps and the whole

    def _begin(self, dice: Dice) -> bool:
        if self._call("begin_step", self.num_steps + 1) is not None:
            return False
        self.num_steps += 1
        return True

    def _launch(self, dice: Dice) -> bool:
        return self._call("launch_step", self._step_id(dice)) is None

    def _commit(self, dice: Dice) -> bool:
        if self._call("commit", self._step_id(dice)) is not None:
            return False
        self.parts = []
        return True

    def _step_id(self, dice: Dice) -> int:
        """Return the number of the open step, or now and then of none."""
        return self.num_steps - dice.is_one_in(8)

    def _call(self, method: str, step_id: int) -> Any:
        """Let both begin, launch or end a step; return what they return or raise."""
        expected = outcome_of(lambda: getattr(self.model, method)(step_id))
        given = outcome_of(lambda: getattr(self.manager, method)(step_id))
        assert given == expected, f"{method}: product: {given}, model: {expected}"
        self.seen["not its turn"] += expected is LocalProtocolError
        return expected

    def _withdraw(self, dice: Dice) -> bool:
        """Withdraw the step; who took part and is not lost waits again, or keeps its slots and tries again."""
        if self.model.step is None:
            return False
        writers = self.model.step.writers
        self.seen["moved on and lost"] += any(who in counted_on for who, counted_on in writers.items())
        self.seen["lost"] += len(self._call("withdraw", self.num_steps))
        parts, self.parts = self.parts, []
        for request, start in reversed(parts):  # the earliest has the last word
            request.num_computed_tokens = start
        for request in {request.request_id: request for request, _ in parts}.values():
            if dice.is_one_in(2):
                self._preempt(request, dice)
        return True

    def _reset(self, dice: Dice) -> None:
        was_reset = self.model.reset()
        assert self.manager.reset_prefix_cache() == was_reset
        self.seen["was reset"] += was_reset

    def _epoch(self, dice: Dice) -> None:
        self.seen["new epoch with holders"] += len(self.model.tables) > 0
        epoch = self.manager.epoch
        self.model.new_epoch()
        assert self.manager.new_epoch() == epoch + 1

    # ---- comparing

    def _compare(self) -> None:
        manager, model, pool = self.manager, self.model, self.manager.block_pool
        check_kv(manager)
        block_ids = range(1, model.num_blocks)
        assert pool.free_order() == model.free_order
        assert {each: list(manager.get_block_ids(each)) for each in manager.holders()} == model.tables
        assert [pool.ref_cnt(block_id) for block_id in block_ids] == [model.ref_cnt(block_id) for block_id in block_ids]
        assert {block_id for block_id in block_ids if pool.block_key(block_id)} == model.published.keys()
        for request in self.requests:
            blocks, num_tokens = manager.get_computed_blocks(request)
            assert (list(blocks.get_block_ids()), num_tokens) == model.lookup(request), str(request)
            if self._is_held(request):
                num_running = len(model.tables)
                expected = model.num_common_prefix_blocks(request, num_running)
                assert manager.get_num_common_prefix_blocks(request, num_running) == expected
        self.seen["duplicates"] += len(set(model.published.values())) < len(model.published)
        self.seen["fenced"] += model.step is not None and len(model.step.fenced) > 0
