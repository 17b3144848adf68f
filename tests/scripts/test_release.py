"""A release's parts: the same for the same commit, complete, and a changed byte is found."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from scripts import release
from tests.house.test_dependencies import PROJECT, names


def test_the_chart_is_packed_as_helm_does_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        release.pack_chart(tmp_path / name, 1_700_000_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with tarfile.open(tmp_path / "a") as tar:
        assert {"mmcached/Chart.yaml", "mmcached/values.yaml", "mmcached/templates/workload.yaml"} <= set(
            tar.getnames()
        )


def test_the_bill_of_materials_has_every_dependency_and_what_those_need() -> None:
    bill = release.bill_of_materials(1_700_000_000)
    listed = {component["name"].lower().replace("_", "-") for component in bill["components"]}
    extras = PROJECT["optional-dependencies"]
    direct = [*names(PROJECT["dependencies"]), *(name for extra in release.EXTRAS for name in names(extras[extra]))]
    assert {name.lower().replace("_", "-") for name in direct} - {"mmcached"} <= listed
    assert "pygments" in listed, "needed by rich"
    assert "mypy" not in listed, "needed by developers only"
    refs = {component["bom-ref"] for component in bill["components"]}
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} <= refs


@pytest.mark.parametrize("change", ["byte", "missing", "more"])
def test_a_folder_that_differs_from_its_checksums_is_refused(tmp_path: Path, change: str) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tgz").write_bytes(b"chart")
    release.write_sums(tmp_path)
    if change == "byte":
        (tmp_path / "a.whl").write_bytes(b"whee!")
    elif change == "missing":
        (tmp_path / "b.tgz").unlink()
    else:
        (tmp_path / "c").touch()
    with pytest.raises(SystemExit, match=r"a\.whl" if change == "byte" else release.SUMS):
        release.check(tmp_path, "0.1.0")
