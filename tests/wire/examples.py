"""One example of every message, with the union it belongs to; `test_messages` asserts that none is missing."""

from __future__ import annotations

from typing import Any

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, error_to_wire
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages import client, engine, frontend, worker
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import (
    ClipOptions,
    EncoderForm,
    Feature,
    Fetch,
    FetchEnd,
    Grants,
    Inline,
    MessageLimits,
    NurseryPlace,
    RequestRows,
    Rows,
    RowsWanted,
    Save,
    SavedRows,
    StoredItem,
    StoredOutput,
    StreamedTokens,
    Tensor,
    TensorForm,
)

RING_ID = CLIENT_ID = "0123456789abcdef" * 2
ANNOUNCEMENT = RingAnnouncement(1000, RING_ID, 2**62, 1 << 30, 4096, 8)
HANDLE = Handle(RING_ID, 2**62, 3, 4, 4096, 12_345, "tenant")
GRANTS = Grants(7, [(0, 64)], [(128, 256)])
STORED = StoredItem(f"{RING_ID}.1.2.3")
TENSOR = Tensor(0, "float32", (3, 64))
ENCODER = EncoderForm(
    "reference",
    {"image": [TensorForm("pixel_values", "uint8", (-1, 12))]},
    [TensorForm("embeddings", "int32", (-1, 8))],
)
FEATURES = [
    Feature("a" * 64, "image", 1, 6, 6, 99, STORED),
    Feature("b" * 64, "image", 9, 2, 2, 99, Inline(0, 3)),
    Feature("c" * 64, "image", 12, 2, 2, 99, None),
    Feature("d" * 64, "image", 16, 2, 2, 0, None, has_output=True),
]
ROWS = RowsWanted(["hidden_states", "hidden_states.layer_0"], 120, "delta")
SAVED_ROWS = SavedRows("hidden_states", 3, "rows/7", "int32", (5, 64))
ERROR = error_to_wire(CacheMiss(["a", "b"]))


def config_with(name: str, value: object) -> ServiceConfig:
    """Return the configuration with one setting, named as `limits.image_cpu_s` or `block_size`, changed."""
    section, _, field = name.rpartition(".")
    fields: dict[str, Any] = {"kv_events": {"enable_kv_cache_events": True}}
    fields.setdefault(section, {})[field] = value
    return ServiceConfig.from_fields(fields | fields.pop("", {}))


UNIONS: dict[str, Any] = {
    "ToClient": client.ToClient,
    "FromClient": frontend.FromClient,
    "FromEngine": from_engine.FromEngine,
    "FromFrontend": engine.FromFrontend,
    "FromWorker": engine.FromWorker,
    "FromEngineToWorker": worker.FromEngineToWorker,
}

EXAMPLES: list[tuple[str, Any]] = [
    ("ToClient", client.Welcome("service", 258, 257, 64, 8192)),
    (
        "ToClient",
        client.Welcome(
            "service", 258, 257, 64, 8192, ANNOUNCEMENT, 2**62, MessageLimits(64, 2**20, 2**40), 2**26, "f" * 32
        ),
    ),
    ("ToClient", client.Tokens([StreamedTokens(1, 0, [2, 3]), StreamedTokens(4, 17, [5])])),
    ("ToClient", client.Tokens([], [RequestRows(1, Rows("hidden_states", 3, TENSOR))])),
    ("ToClient", client.Generated(1, [2, 3], "stop", 12, 8, [Rows("hidden_states", 0, TENSOR)])),
    ("ToClient", client.Generated(1, [], "length", 12, 0)),
    ("ToClient", client.Generated(1, [], "length", 12, 0, saved_rows=[SAVED_ROWS])),
    ("ToClient", client.Encoded(1, [{"embeddings": TENSOR}, {"a": TENSOR, "b": TENSOR}])),
    ("ToClient", client.Encoded(1, ["key"])),
    ("ToClient", client.Encoded(1, ["key", "key"], [[(0.0, 0.5), (0.5, 1.0)]])),
    ("ToClient", client.ProcessorInfo(1, ENCODER)),
    ("ToClient", client.Orders(1, [Fetch(1, "tenant", "key", 2**62, True, 50)], [Save("tenant", "key", HANDLE)], 7)),
    ("FromClient", frontend.TakeOrders(CLIENT_ID, 1, 10.0)),
    ("FromClient", frontend.FetchesEnded(CLIENT_ID, [FetchEnd(1, "miss"), FetchEnd(2, "elsewhere")])),
    ("FromClient", frontend.SecondLevelFlushed(CLIENT_ID, 7, "no answer")),
    ("FromClient", frontend.AnotherHostFlushed(CLIENT_ID, "another host was flushed")),
    ("ToClient", client.Stats(1, {"engines": [{"workers": [{"items_encoded": 3}]}]})),
    ("ToClient", client.Probed(1, [0], 2, [])),
    ("ToClient", client.Flushed(1)),
    ("ToClient", client.Failed(None, ERROR)),
    ("ToClient", client.ReaderRegistered(1, True)),
    ("ToClient", client.NurseryOpened(1, GRANTS, True)),
    ("ToClient", client.Records(1, 2, [HANDLE, Inline(0, 3), None])),
    ("ToClient", client.Present(1, [True, False])),
    ("ToClient", client.Claimed(1, 2, 5)),
    ("ToClient", client.Claims(1, 2, [HANDLE, Inline(0, 3), 5, 0, None])),
    ("ToClient", client.Stored(1, 2, False, "too large")),
    ("FromClient", frontend.ClientHello(CLIENT_ID)),
    ("FromClient", frontend.ClientHello(CLIENT_ID, "vllm-0.30_x")),
    ("FromClient", frontend.Generate(CLIENT_ID, 1, "see <image>", 5, ROWS, 1.5, "tenant")),
    ("FromClient", frontend.Generate(CLIENT_ID, 1, [1, 258], 5, None, 1.5)),
    ("FromClient", frontend.Generate(CLIENT_ID, 1, "<image><image>", 5, RowsWanted(), 1.5, "tenant", ["cat", None])),
    ("FromClient", frontend.Generate(CLIENT_ID, 1, [1, 258], 5, None, 1.5, stream_window=32)),
    ("FromClient", frontend.TokensTaken(CLIENT_ID, 1, 16, 4096)),
    ("FromClient", frontend.Encode(CLIENT_ID, 1, 0.5)),
    ("FromClient", frontend.Encode(CLIENT_ID, 1, 0.5, "", ["cat"])),
    ("FromClient", frontend.Encode(CLIENT_ID, 1, 0.5, takes_keys=True)),
    (
        "FromClient",
        frontend.Encode(CLIENT_ID, 1, 0.5, clips=[ClipOptions("video", 0.5, 9.5, 2.0), ClipOptions("audio")]),
    ),
    ("FromClient", frontend.Cancel(CLIENT_ID, 1)),
    ("FromClient", frontend.GetStats(1)),
    ("FromClient", frontend.GetProcessorInfo(1)),
    ("FromClient", frontend.Probe(1, 0.5)),
    ("FromClient", frontend.Flush(1)),
    ("FromClient", frontend.Flush(1, True)),
    ("FromClient", frontend.ClientBye(CLIENT_ID)),
    ("FromClient", frontend.RegisterReader(CLIENT_ID, 1, 2**62, 3, 99)),
    ("FromClient", frontend.OpenNursery(CLIENT_ID, 1, 1 << 20)),
    ("FromClient", frontend.GetRecords(CLIENT_ID, 1, ["a", "b"], "tenant", 99)),
    ("FromClient", frontend.HaveRecords(1, ["a", "b"], "tenant")),
    ("FromClient", frontend.PutRecord(CLIENT_ID, 1, "a", 2, "tenant", 5)),
    ("FromClient", frontend.PutRecord(CLIENT_ID, 1, "a", 2, "tenant", 5, NurseryPlace(7, 64, 2**22, 100, 5))),
    ("FromClient", frontend.PutRecord(CLIENT_ID, 1, "a", 2, "tenant", 5, None, True)),
    ("FromClient", frontend.ClaimRecord(CLIENT_ID, 1, "a", 2.5, "tenant", 99)),
    ("FromClient", frontend.ClaimRecords(CLIENT_ID, 1, ["a", "b"], "tenant", 99)),
    ("FromClient", frontend.DropClaim(CLIENT_ID, 5)),
    ("FromClient", frontend.DropRecord(1, "a", "tenant")),
    ("FromEngine", from_engine.EngineHello(0, 5, "digest")),
    ("FromEngine", from_engine.EngineReady(2)),
    ("FromEngine", from_engine.EngineReady(2, "f" * 32, ENCODER)),
    ("FromEngine", from_engine.TokensCommitted([StreamedTokens(1, 16, [7, 8])])),
    ("FromEngine", from_engine.TokensCommitted([], [RequestRows(1, Rows("hidden_states", 3, TENSOR))])),
    ("FromEngine", from_engine.RequestGenerated(1, [7], "length", 0, [Rows("hidden_states", 0, TENSOR)])),
    ("FromEngine", from_engine.RequestEncoded(1, [{"embeddings": TENSOR}])),
    ("FromEngine", from_engine.RequestGenerated(1, [7], "length", 0, saved_rows=[SAVED_ROWS])),
    ("FromEngine", from_engine.RequestEncoded(1, ["key", {"embeddings": TENSOR}])),
    ("FromEngine", from_engine.RequestFailed(1, ERROR)),
    ("FromEngine", from_engine.RequestMissed(1, ["a" * 64])),
    ("FromEngine", from_engine.EngineProbed(4, ["checksum"])),
    ("FromEngine", from_engine.CacheChanged(False, [b"digest"], [b"another"], ["item"], ["other"])),
    ("FromEngine", from_engine.EngineFlushed(4)),
    ("FromFrontend", engine.Greeted(3)),
    ("FromFrontend", engine.AddRequest(1, "generate", [256, 258, 258], FEATURES, 5, ROWS, "tenant")),
    ("FromFrontend", engine.AddRequest(1, "encode", [258], FEATURES, 0, None, "", 7)),
    ("FromFrontend", engine.AddRequest(1, "generate", [256], [], 5, None, "", 7, is_streamed=True)),
    ("FromFrontend", engine.AddRequest(1, "generate", [256], [], 5, None, block_hashes=[bytes(32)])),
    ("FromFrontend", engine.AbortRequest(1)),
    ("FromFrontend", engine.Refused(ERROR)),
    ("FromFrontend", engine.ProbeEngine(4, STORED)),
    ("FromFrontend", engine.FlushEngine(4)),
    ("FromWorker", engine.WorkerHello(1, 6, "digest", "cpu")),
    ("FromWorker", engine.WorkerAttached(6, 5)),
    ("FromWorker", engine.WorkerAttached(6, 5, 8192, "f" * 32, ENCODER)),
    (
        "FromWorker",
        engine.StepOutput(
            5,
            6,
            7,
            b"digest",
            [engine.Sampled(1, 65)],
            [RequestRows(1, Rows("hidden_states", 0, TENSOR))],
            [engine.ItemEmbedding(1, 0, "embeddings", TENSOR)],
        ),
    ),
    ("FromWorker", engine.StepOutput(5, 6, 7, b"digest", [], [], [], ["key", "a" * 64])),
    (
        "FromWorker",
        engine.StepOutput(
            5,
            6,
            7,
            b"digest",
            [],
            [],
            [],
            prefix_report={b"name": {"hidden_states": 16}, b"gone": {}},
            missing=[engine.RowsMissing(1, "hidden_states", 3, 8)],
            saved=[engine.ItemSaved(1, 0, "key")],
            saved_rows=[engine.RequestSavedRows(1, SAVED_ROWS)],
        ),
    ),
    ("FromWorker", engine.WorkerProbed(5, 6, 4, "checksum")),
    ("FromWorker", engine.StepFailed(5, 6, 7, ERROR)),
    ("FromWorker", engine.StepFailed(5, 6, 7, ERROR, {b"gone": {}})),
    ("FromEngineToWorker", worker.Attach(5)),
    (
        "FromEngineToWorker",
        worker.StepPlan(
            5,
            6,
            7,
            ["gone"],
            [
                worker.EncodeItem("key", "a" * 64, 6, STORED),
                worker.EncodeItem("key", "b" * 64, 2, Inline(0, 3), "tenant", 2**62),
                worker.EncodeItem("key", "c" * 64, 2, StoredOutput("token")),
            ],
            [worker.EmitEmbedding(1, 0, "key"), worker.EmitEmbedding(1, 1, "key", "a" * 64, "tenant", 2**62)],
            [worker.RunChunk(1, [256, 258], 0, [1, 2], [worker.EmbedSpan("key", 1, 0, 1)], True, [], 0, 0, [])],
        ),
    ),
    (
        "FromEngineToWorker",
        worker.StepPlan(
            5,
            6,
            8,
            [],
            [],
            [],
            [
                worker.RunChunk(
                    1, [256], 16, [1, 2], [], True, ["hidden_states"], 3, 0, [b"0" * 32], "rows/7", "tenant", 2**62
                )
            ],
            [7],
            2**40,
        ),
    ),
    ("FromEngineToWorker", worker.ProbeWorker(5, 6, 4, STORED)),
    ("FromEngineToWorker", worker.WorkerRefused(ERROR)),
    ("FromEngineToWorker", worker.ClearCaches(5)),
    ("FromEngineToWorker", worker.Shutdown(5)),
]
