"""A setting that cannot be is refused when the engine starts, by name, value and limit; so is an old vLLM."""

from __future__ import annotations

import pytest

from mmcached.integrations import vllm
from mmcached.integrations.vllm.settings import ConnectorSettings
from mmcached.integrations.vllm.versions import check_version


def test_settings_are_read() -> None:
    settings = ConnectorSettings.of(
        {"run_dir": "/run/x", "claim_wait_s": 2, "single_flight": False, "max_waiting_saves_mb": 1}
    )
    assert (settings.run_dir, settings.claim_wait_s, settings.single_flight) == ("/run/x", 2.0, False)
    assert settings.max_waiting_bytes == 1 << 20
    assert ConnectorSettings.of({"run_dir": None}) == ConnectorSettings()
    assert ConnectorSettings.of({"max_pinned_mb": 0}).max_pinned_bytes == 0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"rundir": "/run/x"}, "unknown setting 'rundir'"),
        ({"run_dir": 7}, "run_dir is 7, and must be str"),
        ({"single_flight": "yes"}, "single_flight is 'yes', and must be bool"),
        ({"claim_wait_s": True}, "claim_wait_s is True, and must be float"),
        ({"tenant": None}, "tenant is None, and must be str"),
        ({"max_pinned_mb": -1}, "max_pinned_mb is -1.0, and must be 0 or more"),
        ({"only_exact": True, "encoder": "cats"}, "only_exact needs names by content, and encoder replaces them"),
        ({"lease_steps": 0}, "lease_steps is 0, and must be above 0"),
        ({"claim_wait_s": float("nan")}, "claim_wait_s is nan, and must be above 0"),
    ],
)
def test_what_cannot_be_is_said(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConnectorSettings.of(extra)


@pytest.mark.parametrize("version", ["0.30.0", "0.33.1rc1.dev5+gabc", "1.0", "dev"])
def test_a_vllm_that_will_do(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.29.2", "0.9.0"])
def test_an_old_vllm_is_refused(version: str) -> None:
    with pytest.raises(ImportError, match=f"needs vLLM 0.30 or newer, and this is {version}"):
        check_version(version)


def test_without_vllm_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcached.integrations.vllm.versions.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs vLLM, which is not installed"):
        _ = vllm.MmcachedECConnector
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = vllm.Other
