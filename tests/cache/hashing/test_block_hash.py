"""Equal digest exactly when the whole prefix is equal: tokens, items and where they lie, adapter, tenant, embeds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from xxhash import xxh3_64, xxh3_128

from mmcached.cache.hashing.block_hash import (
    ROOT_HASH,
    SHA256,
    BlockHasher,
    block_hasher,
    encode_block,
    extend_block_hashes,
    extra_keys_by_block,
    hash_block,
)
from mmcached.cache.hashing.block_keys import EmbedsKey, ExtraKey, LookaheadKey, LoraKey, MultiModalKey, SaltKey
from mmcached.cache.hashing.token_bytes import MAX_TOKEN_ID
from mmcached.engine import Request, Scheduler
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.messages.parts import Feature
from tests.engine.builders import generate, image, small_config

PARENT = bytes(range(32))
# Every width of digests: 32 bytes, and two that are filled up.
HASHERS = [SHA256, block_hasher("blake3"), BlockHasher("xxh3", xxh3_128, seed="s"), BlockHasher("sha1", hashlib.sha1)]


def request_with(
    token_ids: Sequence[int],
    features: Sequence[Feature] = (),
    *,
    tenant: str = "",
    lora: LoraKey | None = None,
    prompt_embeds: dict[int, bytes] | None = None,
) -> Request:
    request = generate(1, token_ids, features, tenant=tenant)
    request.lora = lora
    request.prompt_embeds = prompt_embeds or {}
    return request


def hashes(request: Request, block_size: int = 4, num_lookahead_tokens: int = 0) -> list[bytes]:
    extend_block_hashes(request, block_size, num_lookahead_tokens)
    return request.block_hashes


def keys_of(request: Request, start: int, end: int) -> list[ExtraKey]:
    """The definition, for one block by itself; `[start, end)` need not begin at a multiple of anything."""
    keys: list[ExtraKey] = [request.lora] if request.lora and start == 0 else []
    for feature in request.features:
        covered = range(max(start, feature.offset), min(end, feature.offset + feature.length))
        keys += [MultiModalKey(feature.mm_hash, feature.offset - start)] if covered else []
    keys += [SaltKey(request.tenant)] if request.tenant and start == 0 else []
    embeds = request.prompt_embeds
    return keys + [
        EmbedsKey(position - start, embeds[position]) for position in range(start, end) if position in embeds
    ]


def hashes_one_by_one(
    request: Request, block_size: int, num_lookahead_tokens: int = 0, *, hasher: BlockHasher = SHA256
) -> list[bytes]:
    """The definition: each block by itself, after its parent."""
    token_ids, found = request.token_ids, [hasher.root]
    for start in range(0, request.num_tokens - block_size - num_lookahead_tokens + 1, block_size):
        end = start + block_size
        seen_end = end + num_lookahead_tokens
        keys = keys_of(request, start, seen_end)
        keys += [LookaheadKey(tuple(token_ids[end:seen_end]))] if num_lookahead_tokens else []
        found.append(hasher.hash_block(found[-1], token_ids[start:end], keys))
    return found[1:]


# ---- what is hashed


def test_adapter_items_salt_and_embeddings_come_in_this_order() -> None:
    lora = LoraKey("style", "/adapters/style")
    embeds = {3: b"row 3", 7: b"row 7"}
    request = request_with(range(8), [image("a", 2, 4)], tenant="me", lora=lora, prompt_embeds=embeds)
    first = [lora, MultiModalKey("a", 2), SaltKey("me"), EmbedsKey(3, b"row 3")]
    second = [MultiModalKey("a", -2), EmbedsKey(3, b"row 7")]
    assert extra_keys_by_block(request, 4, range(2)) == {0: first, 1: second}
    assert extra_keys_by_block(request, 4, range(1, 2)) == {1: second}


@pytest.mark.parametrize(
    "others",
    [
        {"tenant": "yours"},
        {"tenant": ""},
        {"tenant": "mine", "lora": LoraKey("mine", "")},
        {"lora": LoraKey("mine", "")},
        {"lora": LoraKey("mine", "elsewhere")},
        {"tenant": "mine", "prompt_embeds": {0: b"mine"}},
    ],
    ids=str,
)
def test_who_may_not_share_the_first_block_shares_none(others: dict[str, Any]) -> None:
    mine, theirs = request_with([7] * 12, tenant="mine"), request_with([7] * 12, **others)
    assert len({*hashes(mine), *hashes(theirs)}) == 6


@given(st.lists(st.text(max_size=5), min_size=2, max_size=5, unique=True), st.lists(st.integers(0, 2), max_size=12))
def test_tenants_never_share(tenants: list[str], token_ids: list[int]) -> None:
    found = [hashes(generate(1, token_ids, tenant=tenant), 2) for tenant in tenants]
    assert len({digest for digests in found for digest in digests}) == len(tenants) * (len(token_ids) // 2)


def test_same_image_elsewhere_or_other_image_is_other_content() -> None:
    requests = [
        generate(1, 8, [image("a", 1, 2)]),
        generate(1, 8, [image("b", 1, 2)]),
        generate(1, 8, [image("a", 2, 2)]),
        generate(1, 8, [image("a", 1, 1), image("a", 2, 1)]),
    ]
    for request in requests:
        request.token_ids = [258] * 8  # what differs are the items alone
    assert len({digest for request in requests for digest in hashes(request)}) == 8


def test_a_block_names_an_item_behind_it_on_which_it_depends() -> None:
    bound = Feature("a", "image", 7, 2, 2, 100, None, num_bound=3)
    requests = [request_with([258] * 12, features) for features in ([], [image("a", 7, 2)], [bound])]
    plain, named, both = (hashes(request) for request in requests)
    assert plain[0] == named[0] == both[0]
    assert len({plain[1], named[1], both[1]}) == 2, "the second block has tokens of the item"
    earlier = hashes(request_with([258] * 12, [Feature("a", "image", 8, 2, 2, 100, None, num_bound=4)]))
    assert earlier[0] == plain[0]
    assert earlier[1] != plain[1], "the item begins in the third block"


# ---- growing


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests whose items begin and end anywhere in a block, with the other extra keys at times."""
    features, position = [], 0
    for mm_hash in draw(st.lists(st.sampled_from(["a", "b"]), max_size=4)):
        position += draw(st.integers(0, 5))
        features.append(image(mm_hash, position, draw(st.integers(0, 7))))
        position += features[-1].length
    num_tokens = position + draw(st.integers(0, 9))
    return request_with(
        draw(st.lists(st.integers(0, 2), min_size=num_tokens, max_size=num_tokens)),
        features,
        tenant=draw(st.sampled_from(["", "me"])),
        lora=draw(st.none() | st.just(LoraKey("l", "p"))),
        prompt_embeds=draw(st.dictionaries(st.integers(0, 12), st.just(b"row"), max_size=2)),
    )


@given(requests(), st.integers(1, 6), st.integers(0, 8), st.sampled_from(HASHERS), st.data())
def test_growing_gives_what_hashing_from_scratch_gives(
    request: Request, block_size: int, num_lookahead_tokens: int, hasher: BlockHasher, data: st.DataObject
) -> None:
    known = request.token_ids
    request.token_ids = []
    while request.num_tokens < len(known):
        num_more = data.draw(st.integers(1, len(known) - request.num_tokens))
        request.token_ids = known[: request.num_tokens + num_more]
        before = list(request.block_hashes)
        hasher.extend_block_hashes(request, block_size, num_lookahead_tokens)
        assert request.block_hashes[: len(before)] == before
    assert request.block_hashes == hashes_one_by_one(request, block_size, num_lookahead_tokens, hasher=hasher)


# ---- looking ahead


def test_a_digest_covers_the_lookahead_tokens_and_no_more() -> None:
    kept = hashes(generate(1, [0, 1, 2, 3, 4, 5, 6]), 2, 2)
    assert len(kept) == 2
    for changed, num_shared in [(6, 2), (5, 1), (4, 1), (3, 0), (2, 0)]:
        token_ids = list(range(7))
        token_ids[changed] = 99
        other = hashes(generate(2, token_ids), 2, 2)
        assert other[:num_shared] == kept[:num_shared]
        assert not {*other[num_shared:]} & {*kept}


# ---- what is refused


@pytest.mark.parametrize(
    ("token_ids", "position", "value"),
    [
        ([1, 2, -1, 4], 2, -1),
        ([1 << 32, -1, 3, 4], 0, 1 << 32),
        ([1, 2, 3, 4, 5, 6, 7, 2.5], 7, "2.5"),
        ([1, None, 3, 4], 1, "None"),
    ],
    ids=str,
)
def test_a_placeholder_is_refused_and_changes_nothing(token_ids: Sequence[Any], position: int, value: object) -> None:
    request = generate(1, [0] * 4)
    before = list(hashes(request))
    request.token_ids += token_ids
    with pytest.raises(InvalidRequest) as caught:
        extend_block_hashes(request, 4)
    assert caught.value.details["field"] == f"token_ids[{4 + position}]"
    assert caught.value.details["value"] == value
    assert f"0 to {MAX_TOKEN_ID}" in str(caught.value)
    assert request.block_hashes == before
    with pytest.raises(InvalidRequest):
        hash_block(PARENT, token_ids)
    with pytest.raises(InvalidRequest):
        hash_block(PARENT, [1], [LookaheadKey(tuple(token_ids))])


def test_a_placeholder_among_the_lookahead_tokens_is_refused_and_changes_nothing() -> None:
    request = generate(1, [1, 2, 3, 4, -1, 6])
    with pytest.raises(InvalidRequest, match=r"token_ids\[4\] = -1"):
        extend_block_hashes(request, 2, 1)
    assert request.block_hashes == []
    request.token_ids[4] = 5
    assert hashes(request, 2, 1) == hashes_one_by_one(request, 2, 1)


@pytest.mark.parametrize("parent", [b"", PARENT[:31], PARENT + b"\0"], ids=len)
def test_a_parent_that_is_no_digest_is_refused(parent: bytes) -> None:
    with pytest.raises(InvalidRequest, match=f"parent = '{len(parent)} bytes'"):
        hash_block(parent, [1])


# ---- hash functions


def test_each_function_hashes_the_same_encoding_under_its_own_root() -> None:
    encoding = encode_block(PARENT, [1, 2], [SaltKey("me")])
    by_sha256, by_blake3 = block_hasher("sha256"), block_hasher("blake3")
    assert by_sha256.hash_block(PARENT, [1, 2], [SaltKey("me")]) == hashlib.sha256(encoding).digest()
    assert by_blake3.hash_block(PARENT, [1, 2], [SaltKey("me")]) == blake3(encoding).digest()
    assert by_sha256.root != by_blake3.root


def test_roots_and_chains_are_the_same_in_every_process() -> None:
    # Two engines agree on digests only while these stay; to change one on purpose, raise the version in its text.
    request = generate(1, [1, 2, 3, 4, 5, 6, 7, 8], [image("a", 2, 4)], tenant="me")
    ahead = generate(1, [1, 2, 3, 4, 5, 6, 7, 8], [image("a", 2, 4)], tenant="me")
    found = [ROOT_HASH, hashes(request)[-1], hashes(ahead, 4, 3)[-1], block_hasher("blake3").root]
    found += [block_hasher("sha256", "seed").root, block_hasher("xxh3", "seed").root]
    assert [digest.hex()[:16] for digest in found] == [
        "2b4c6263e528bf05",
        "045eaced09ba6268",
        "d8edcb91a9e57401",
        "f1b505cca8410209",
        "8b8aa1f4dd9f83c6",
        "104ed843613fa3c7",
    ]


def test_only_without_a_seed_and_collision_proof_are_roots_random_in_each_process() -> None:
    roots = "[b.block_hasher(*a).root.hex() for a in [('xxh3',), ('xxh3', 'seed'), ('blake3',)]]"
    command = [sys.executable, "-c", f"import mmcached.cache.hashing.block_hash as b; print(*{roots})"]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = child.stdout.splitlines()[-1].split()
    mine = [hasher.root.hex() for hasher in (block_hasher("xxh3"), block_hasher("xxh3", "seed"), HASHERS[1])]
    assert found[0] != mine[0]
    assert found[1:] == mine[1:]
    assert block_hasher("xxh3").root == block_hasher("xxh3").root


@pytest.mark.parametrize(
    ("algorithm", "made"), [("builtin", "sha256"), ("xxh3", "xxh3"), ("sha256", "sha256"), ("blake3", "blake3")]
)
def test_what_is_not_collision_proof_is_warned_about(algorithm: str, made: str) -> None:
    with capture_logs() as logs:
        assert block_hasher(algorithm).name == made
    warned = [] if algorithm == made != "xxh3" else [("warning", algorithm)]
    assert [(entry["log_level"], entry["asked_for"]) for entry in logs] == warned
    assert all("not collision-proof" in entry["event"] for entry in logs)


def test_the_configuration_offers_what_there_is() -> None:
    for algorithm in get_args(get_type_hints(ServiceConfig)["prefix_caching_hash_algo"]):
        assert block_hasher(algorithm).name in ("sha256", algorithm)
    with pytest.raises(
        ConfigError, match="prefix_caching_hash_algo = 'md5': must be one of sha256, blake3, xxh3, buil"
    ):
        block_hasher("md5")


def test_a_short_digest_is_filled_up_with_zeros() -> None:
    hasher = block_hasher("xxh3")
    assert hasher.hash_block(PARENT, [1, 2]) == xxh3_128(encode_block(PARENT, [1, 2])).digest() + bytes(16)
    assert hasher.root[16:] == bytes(16)


@pytest.mark.parametrize(("new", "width"), [(xxh3_64, 8), (hashlib.sha384, 48)], ids=["8", "48"])
def test_a_digest_of_another_width_is_refused(new: Any, width: int) -> None:
    with pytest.raises(ConfigError, match=f"f = '{width} bytes': a digest must have 16 to 32 bytes"):
        BlockHasher("f", new)


@pytest.mark.parametrize(("algorithm", "seed"), [("sha256", ""), ("blake3", "seed"), ("xxh3", "seed")])
def test_the_configured_function_and_seed_make_what_is_published(algorithm: str, seed: str) -> None:
    config = small_config(
        block_size=4, max_model_len=64, prefix_caching_hash_algo=algorithm, prefix_caching_hash_seed=seed
    )
    manager = Scheduler(config).kv_cache_manager
    manager.allocate_slots(generate(1, [1, 2, 3, 4]), 4)
    hasher = block_hasher(algorithm, seed)
    assert manager.block_pool.find(hasher.hash_block(hasher.root, [1, 2, 3, 4])) == 1
