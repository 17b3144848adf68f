"""Processes share features only where they run the same code: a tower with foreign or compiled code is left alone."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, LlavaForConditionalGeneration
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.clip import modeling_clip

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from mmcached.wire.errors import InvalidRequest
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors

CPU = torch.device("cpu")
Alter = Callable[[Any, pytest.MonkeyPatch], None]


def twice(self: Any, *values: Any, **named: Any) -> Any:
    """Stand in for a patched forward of an MLP: as Liger or VisionZip put them on classes and instances."""
    return 2 * self.fc2(self.activation_fn(self.fc1(*values, **named)))


def forward_of_a_class(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling_clip.CLIPMLP, "forward", twice)


def code_of_a_class(model: Any, patch: pytest.MonkeyPatch) -> None:
    namespace = vars(modeling_clip) | {"__name__": "elsewhere"}
    exec("def forward(self, x): return 3 * self.fc2(self.fc1(x))", namespace)
    patch.setattr(modeling_clip.CLIPMLP, "forward", namespace["forward"])


def forward_of_a_torch_class(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: 2 * x)


def forward_of_the_tower(model: Any, patch: pytest.MonkeyPatch) -> None:
    own = model.model.vision_tower.forward

    def scaled(*values: Any, **named: Any) -> Any:
        output = own(*values, **named)
        output.hidden_states = tuple(None if each is None else 2 * each for each in output.hidden_states)
        return output

    patch.setitem(model.model.vision_tower.__dict__, "forward", scaled)


def forward_of_a_layer(model: Any, patch: pytest.MonkeyPatch) -> None:
    mlp = model.model.vision_tower.encoder.layers[0].mlp
    patch.setitem(mlp.__dict__, "forward", MethodType(twice, mlp))


def a_call(model: Any, patch: pytest.MonkeyPatch) -> None:
    own = modeling_clip.CLIPMLP.__call__
    patch.setattr(modeling_clip.CLIPMLP, "__call__", lambda self, x: 2 * own(self, x))


def a_class_of_its_own(model: Any, patch: pytest.MonkeyPatch) -> None:
    class OwnMLP(modeling_clip.CLIPMLP):
        forward = twice

    patch.setattr(model.model.vision_tower.encoder.layers[0].mlp, "__class__", OwnMLP)


def a_function_that_is_named(model: Any, patch: pytest.MonkeyPatch) -> None:
    own = torch.nn.functional.scaled_dot_product_attention
    patch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: 2 * own(*a, **k))


def attention_of_its_own(model: Any, patch: pytest.MonkeyPatch) -> None:
    def doubled(*values: Any, **named: Any) -> Any:
        output, weights = sdpa_attention_forward(*values, **named)
        return 2 * output, weights

    patch.setitem(AttentionInterface._global_mapping, "sdpa", doubled)


def the_method_of_the_class(model: Any, patch: pytest.MonkeyPatch) -> None:
    own = type(model.model).get_image_features
    patch.setattr(type(model.model), "get_image_features", lambda self, *a, **k: doubled_features(own(self, *a, **k)))


def doubled_features(output: Any) -> Any:
    output.pooler_output = [2 * each for each in output.pooler_output]
    return output


def a_hook_for_all(model: Any, patch: pytest.MonkeyPatch) -> None:
    hooks = torch.nn.modules.module._global_forward_hooks
    patch.setitem(hooks, 0, lambda module, given, output: output * 2 if isinstance(output, torch.Tensor) else None)


def a_torch_function_with_a_tensor(model: Any, patch: pytest.MonkeyPatch) -> None:
    """Code of Transformers alone, but for a vector that it closes over."""
    source = "def made(direction):\n    return lambda self, x: self.fc2(self.fc1(x)) + direction"
    exec(source, vars(modeling_clip))
    forward = vars(modeling_clip).pop("made")(torch.ones(models.WIDTH))
    patch.setattr(modeling_clip.CLIPMLP, "forward", forward)


FOREIGN = [
    forward_of_a_class,
    code_of_a_class,
    forward_of_a_torch_class,
    forward_of_the_tower,
    forward_of_a_layer,
    a_call,
    a_class_of_its_own,
    a_function_that_is_named,
    attention_of_its_own,
    the_method_of_the_class,
    a_hook_for_all,
    a_torch_function_with_a_tensor,
]


@pytest.mark.parametrize("alter", FOREIGN, ids=lambda alter: alter.__name__)
@torch.no_grad()
def test_foreign_code_is_left_alone_whenever_it_came(
    client: Client, monkeypatch: pytest.MonkeyPatch, alter: Alter
) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        own = tensors(ask(model, inputs))
        with monkeypatch.context() as patch:
            alter(model, patch)
            altered = tensors(ask(model, inputs))
            assert not torch.equal(altered[0], own[0])
        assert (features.num_images, features.num_bypassed) == (2, 1), "it came in the middle of a block"
        assert_equal(tensors(ask(model, inputs)), own)
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (4, 2, 1), "and went"
    with monkeypatch.context() as patch:
        alter(model, patch)
        with cached_image_features(model, client) as features:
            assert_equal(tensors(ask(model, inputs)), altered)
            assert (features.num_images, features.num_bypassed) == (0, 1), "it was there before"


@torch.no_grad()
def test_a_method_of_the_instance_is_left_alone(client: Client) -> None:
    model, inputs = models.make("llava")
    own = model.model.get_image_features
    with cached_image_features(model, client):
        plain = tensors(ask(model, inputs))
    model.model.get_image_features = lambda *values, **named: doubled_features(own(*values, **named))
    with cached_image_features(model, client) as outer, cached_image_features(model, client) as inner:
        assert_equal(tensors(ask(model, inputs)), [2 * each for each in plain])
    assert (outer.num_bypassed, inner.num_images, inner.num_bypassed) == (0, 0, 1)


def edited(patch: pytest.MonkeyPatch) -> None:
    """Change a forward as an edited file of Transformers would."""
    source = textwrap.dedent(inspect.getsource(modeling_clip.CLIPMLP.forward))
    namespace = vars(modeling_clip)
    exec(source.replace("def forward", "def edited_forward").replace("return ", "return 2 * "), namespace)
    patch.setattr(modeling_clip.CLIPMLP, "forward", namespace.pop("edited_forward"))


@torch.no_grad()
def test_other_code_of_transformers_has_another_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        own, first = tensors(ask(model, inputs)), features.fingerprint(CPU)
    edited(monkeypatch)
    for num_encoded in (2, 0):
        with cached_image_features(model, client) as features:
            found = tensors(ask(model, inputs))
            assert features.fingerprint(CPU) not in (None, first)
        assert not torch.equal(found[0], own[0])
        assert (features.num_encoded, features.num_bypassed) == (num_encoded, 0)


def scale_of_attention(model: Any) -> None:
    model.model.vision_tower.encoder.layers[0].self_attn.scale *= 2


def epsilon_of_a_norm(model: Any) -> None:
    model.model.vision_tower.pre_layrnorm.eps = 1.0


def approximation(model: Any) -> None:
    model.model.multi_modal_projector.act = torch.nn.GELU("tanh").eval()


def setting_of_the_configuration(model: Any) -> None:
    model.model.config.vision_config.attention_dropout = 0.5


ATTRIBUTES = [scale_of_attention, epsilon_of_a_norm, approximation, setting_of_the_configuration]


@pytest.mark.parametrize("change", ATTRIBUTES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_attributes_that_code_reads_are_part_of_the_name(client: Client, change: Callable[[Any], None]) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        first = features.fingerprint(CPU)
        change(model)
        found = tensors(ask(model, inputs))
        assert features.num_encoded == 4
        assert features.fingerprint(CPU) not in (None, first)
    assert_equal(found, one_by_one(model, inputs))


@pytest.mark.parametrize("family", [maker.__name__ for maker in (*models.GENERATIVE, *models.TOWERS)])
def test_a_name_is_the_same_after_calls_and_in_another_model(client: Client, family: str) -> None:
    model, inputs = models.make(family)
    with torch.no_grad(), cached_image_features(model, client) as features:
        first = features.fingerprint(CPU)
        for _ in range(2):
            ask(model, inputs)
            assert features.fingerprint(CPU) == first
    with cached_image_features(models.make(family)[0], client) as features:
        assert features.fingerprint(CPU) == first


def compiled_tower(model: Any) -> None:
    model.model.vision_tower.compile(backend="eager")


def compiled_layer(model: Any) -> None:
    model.model.vision_tower.encoder.layers[1].mlp.compile(backend="eager")


def wrapped_tower(model: Any) -> None:
    model.model.vision_tower = torch.compile(model.model.vision_tower, backend="eager")


def compiled_forward(model: Any) -> None:
    projector = model.model.multi_modal_projector
    projector.forward = torch.compile(projector.forward, backend="eager")


COMPILED = [compiled_tower, compiled_layer, wrapped_tower, compiled_forward]
without_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@contextmanager
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@without_warnings
@pytest.mark.parametrize("compile_", COMPILED, ids=lambda compile_: compile_.__name__)
def test_a_compiled_tower_is_left_alone(client: Client, compile_: Callable[[Any], None]) -> None:
    model, _ = models.make("llava")
    with fresh_compiler(), cached_image_features(model, client) as features:
        assert features.fingerprint(CPU) is not None
        compile_(model)
        assert features.fingerprint(CPU) is None


@without_warnings
@torch.no_grad()
def test_a_compiled_method_is_left_alone(client: Client) -> None:
    model, inputs = models.make("llava")
    with fresh_compiler():
        model.model.get_image_features = torch.compile(model.model.get_image_features, backend="eager")
        with cached_image_features(model, client) as features:
            ask(model, inputs)
    assert (features.num_images, features.num_bypassed) == (0, 1)


@without_warnings
def test_a_traced_layer_is_refused_at_once(client: Client) -> None:
    model, _ = models.make("llava")
    layer = model.model.vision_tower.encoder.layers[0]
    layer.mlp = torch.jit.trace(layer.mlp, torch.zeros(1, 17, models.WIDTH))  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidRequest, match=r"layers\.0\.mlp"), cached_image_features(model, client):
        pass


@without_warnings
@torch.no_grad()
def test_a_compiled_model_is_left_alone(client: Client) -> None:
    model, inputs = models.make("llava")
    with fresh_compiler(), cached_image_features(model, client) as features:
        compiled: Any = torch.compile(model, backend="eager")
        for num_calls in (1, 2):
            compiled(**inputs)
            assert (features.num_images, features.num_bypassed) == (0, num_calls)
        ask(model, inputs)
        assert (features.num_images, features.num_encoded) == (2, 2), "nothing of it was kept"


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a mode that computes in another way: for instance of a simulator of a quantiser."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_mode_that_sees_operations_is_left_alone_and_a_default_device_is_none(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        with Rounded():  # type: ignore[no-untyped-call]
            ask(model, inputs)
        assert (features.num_images, features.num_bypassed) == (0, 1)
        with torch.device("cpu"):
            ask(model, inputs)
        assert (features.num_images, features.num_bypassed) == (2, 1)


@torch.no_grad()
def test_hooks_of_accelerate_are_left_alone_and_a_model_on_one_device_shares(client: Client, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, inputs = models.make("llava")
    model.save_pretrained(tmp_path)
    with cached_image_features(model, client) as features:
        ask(model, inputs)
    assert features.num_encoded == 2
    placed = LlavaForConditionalGeneration.from_pretrained(tmp_path, device_map="cpu").eval()
    with cached_image_features(placed, client) as features:
        ask(placed, inputs)
    assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, 0, 0)
    hooked = accelerate.dispatch_model(placed, {"": "cpu"}, force_hooks=True)
    with cached_image_features(hooked, client) as features:
        ask(hooked, inputs)
    assert (features.num_images, features.num_bypassed) == (0, 1)


@without_warnings
@torch.no_grad()
def test_a_quantised_tower_is_left_alone(client: Client) -> None:
    """Its numbers lie in objects that are neither parameters nor buffers."""
    model, inputs = models.make("llava")
    torch.ao.quantization.quantize_dynamic(model.model.vision_tower, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    with cached_image_features(model, client) as features:
        ask(model, inputs)
    assert (features.num_images, features.num_bypassed) == (0, 1)
