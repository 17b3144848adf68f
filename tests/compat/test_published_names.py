"""Published names lead to `mmcached.compat`, and nothing else in the product does."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

import mmcached.cache
import mmcached.engine
import mmcached.frontend
import mmcached.worker
from tests.house import REPOSITORY, SOURCE_ROOTS

FACES = [mmcached.cache, mmcached.engine, mmcached.frontend, mmcached.worker]
COMPAT = REPOSITORY / "engine" / "mmcached" / "compat"

PUBLISHED = {
    "mmcached.cache": [
        "BaseMultiModalCache",
        "BaseMultiModalProcessorCache",
        "BaseMultiModalReceiverCache",
        "CacheInfo",
        "LRUCache",
        "MultiModalBatchedField",
        "MultiModalCache",
        "MultiModalFeatureSpec",
        "MultiModalFieldElem",
        "MultiModalKwargsItem",
        "MultiModalKwargsItems",
        "MultiModalProcessorCacheItem",
        "MultiModalProcessorCacheItemMetadata",
        "NestedTensors",
        "ResolvedPromptUpdate",
    ],
    "mmcached.engine": ["KVCacheManager", "MultiModalReceiverCache", "engine_receiver_cache_from_config"],
    "mmcached.frontend": [
        "MultiModalProcessorOnlyCache",
        "MultiModalProcessorSenderCache",
        "ShmObjectStoreSenderCache",
        "processor_cache_from_config",
        "processor_only_cache_from_config",
    ],
    "mmcached.worker": [
        "OmniTensorPrefixCache",
        "ShmObjectStoreReceiverCache",
        "worker_receiver_cache_from_config",
    ],
}


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_each_name_of_a_package_is_there_and_no_other(face: ModuleType) -> None:
    assert all(hasattr(face, name) for name in face.__all__)
    assert set(PUBLISHED[face.__name__]) <= set(face.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        face.nothing_of_this_name  # noqa: B018


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_published_classes_lie_in_compat(face: ModuleType) -> None:
    for name in PUBLISHED[face.__name__]:
        if name != "NestedTensors":  # a type alias, which has no module
            assert getattr(face, name).__module__.startswith("mmcached.compat."), name


def test_a_package_loads_compat_with_the_first_published_name() -> None:
    """In one child: the packages themselves load none of it, and each of its names does."""
    code = "import importlib, sys\n"
    code += "def loaded(): return any(name.startswith('mmcached.compat') for name in sys.modules)\n"
    code += f"names = {[(face.__name__, PUBLISHED[face.__name__][0]) for face in FACES]}\n"
    code += "faces = [importlib.import_module(face) for face, _ in names]\nassert not loaded()\n"
    code += "for face, (_, name) in zip(faces, names):\n"
    code += (
        "    for each in [each for each in sys.modules if each.startswith('mmcached.compat')]: del sys.modules[each]\n"
    )
    code += "    getattr(face, name)\n    assert loaded(), name\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_nothing_else_names_the_package() -> None:
    """Strings are searched too: an import at run time escapes import-linter."""
    heads = {importlib.import_module(face.__name__).__file__ for face in FACES}
    product = [file for root in SOURCE_ROOTS for file in (REPOSITORY / root / "mmcached").rglob("*.py")]
    outside = [file for file in product if COMPAT not in file.parents]
    assert {
        str(file) for file in outside if re.search(r"(from|import|[\"']) ?mmcached\.compat\b", file.read_text())
    } == heads


def test_the_linter_lets_only_these_packages_name_it() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "protected")
    assert (contract["protected_modules"], contract["allowed_importers"]) == (["mmcached.compat"], [])
    assert contract["ignore_imports"] == [f"{face.__name__} -> mmcached.compat.**" for face in FACES]
