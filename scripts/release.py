"""Builds a release into one folder, and checks it without a network: `make release`.

    mmcached-VERSION.tar.gz, .whl      sdist and wheel
    mmcached_native-VERSION.tar.gz     sdist of the extension module
    mmcached-chart-VERSION.tgz         the Helm chart
    mmcached-VERSION.cdx.json          software bill of materials, CycloneDX 1.6: what the service installs
    mmcached-VERSION-ARCH.tar          image for amd64 and arm64, where a container engine runs
    SHA256SUMS                         of all of these

The same commit gives the same chart and bill; hatchling does so for sdist and wheel, setuptools not for the module's.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLS = REPOSITORY / ".venv-release" / "bin" / "python"
"""Has twine and the schema of CycloneDX: the dependency group `packaging`."""
CHART = REPOSITORY / "deploy" / "helm" / "mmcached"
EXTRAS = ("service", "redis", "video", "audio", "otel")
"""What the bill of materials covers, as far as it is installed where the release is built."""
PLATFORMS = ("linux/amd64", "linux/arm64")
SUMS = "SHA256SUMS"


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return table


def commit_time() -> int:
    """Return the time of the last commit in seconds; `SOURCE_DATE_EPOCH` overrules it."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _run("git", "log", "-1", "--format=%ct", cwd=REPOSITORY))


def pack_chart(target: Path, seconds: int) -> None:
    """Write the chart as `helm package` does: a gzipped tar whose one folder is the chart's name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(f"{CHART.name}/{path.relative_to(CHART)}")
            info.size, info.mtime, info.mode = path.stat().st_size, seconds, 0o644
            tar.addfile(info, io.BytesIO(path.read_bytes()))
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=seconds))


def requirements(name: str, extras: Sequence[str], seen: dict[str, set[str]]) -> None:
    """Add the installed distributions that `name` with `extras` requires: normalized name to its dependencies."""
    from packaging.requirements import Requirement  # pip's own; a bare environment may lack it

    key = _normalized(name)
    for text in metadata.requires(name) or ():
        wanted = Requirement(text)
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if not applies or not _is_installed(wanted.name):
            continue
        found = _normalized(wanted.name)
        is_new = found not in seen
        seen.setdefault(key, set()).add(found)
        seen.setdefault(found, set())
        if is_new or wanted.extras:
            requirements(wanted.name, sorted(wanted.extras), seen)


def bill_of_materials(seconds: int) -> dict[str, Any]:
    """Return the CycloneDX document of mmcached and what it installs, with versions and licences as stated."""
    from datetime import UTC, datetime

    seen: dict[str, set[str]] = {}
    requirements("mmcached", EXTRAS, seen)
    seen["mmcached"].discard("mmcached")
    components = [_component(name) for name in sorted(seen) if name != "mmcached"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "component": {**_component("mmcached"), "type": "application"},
        },
        "components": components,
        "dependencies": [
            {"ref": _url(name), "dependsOn": sorted(map(_url, wanted))} for name, wanted in sorted(seen.items())
        ],
    }


def _component(name: str) -> dict[str, Any]:
    stated = metadata.metadata(name)
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _url(name),
        "name": stated["Name"],
        "version": stated["Version"],
        "purl": _url(name),
    }
    licence = next((stated[key] for key in ("License-Expression", "License") if key in stated), "")
    if licence and "\n" not in licence:
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _url(name: str) -> str:
    return f"pkg:pypi/{_normalized(name)}@{metadata.version(name)}"


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def build_images(out: Path, version: str) -> Iterator[str]:
    """Build the images of all platforms that can be built here; yield a sentence for each."""
    engine = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    if engine is None or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        yield "images: left out, no container engine runs here (podman or docker)"
        return
    for platform in PLATFORMS:
        tag = f"mmcached:{version}-{platform.partition('/')[2]}"
        recipe = ["build", "--platform", platform, "-f", "deploy/container/Containerfile", "-t", tag, "."]
        done = subprocess.run([engine, *recipe], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode:
            yield f"image for {platform}: left out, {engine} failed: {done.stderr.strip().splitlines()[-1:]}"
            continue
        target = out / f"mmcached-{version}-{platform.partition('/')[2]}.tar"
        _run(engine, "save", "-o", str(target), tag, cwd=REPOSITORY)
        yield f"image for {platform}: {target.name}"


def write_sums(out: Path) -> None:
    """Write the checksums of all files of the folder, as `sha256sum -c` reads them."""
    files = sorted(path for path in out.iterdir() if path.name != SUMS)
    (out / SUMS).write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files))


def check(out: Path, version: str) -> None:
    """Check a release folder without a network.

    Raises:
        SystemExit: A file is missing or wrong; names it.
    """
    lines = [line.split("  ") for line in (out / SUMS).read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    if set(sums) | {SUMS} != {path.name for path in out.iterdir()}:
        raise SystemExit(f"{SUMS} names other files than {out} has")
    for name, digest in sums.items():
        if _digest(out / name) != digest:
            raise SystemExit(f"{name}: its bytes are not those of {SUMS}")
    wheel, sdist = (out / f"mmcached-{version}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
    native = out / f"mmcached_native-{version}.tar.gz"
    _run(str(TOOLS), "-m", "twine", "check", str(native), cwd=out)
    _run(str(TOOLS), "-m", "twine", "check", "--strict", str(wheel), str(sdist), cwd=out)
    with tarfile.open(out / f"mmcached-chart-{version}.tgz") as tar:
        chart = tar.extractfile("mmcached/Chart.yaml")
        if chart is None or f"\nversion: {version}\n" not in chart.read().decode():
            raise SystemExit(f"Chart.yaml: its version is not {version}, the project's")
    validate = "import sys; from cyclonedx.schema import SchemaVersion as S; from cyclonedx.validation.json import *; "
    validate += "e = JsonStrictValidator(S.V1_6).validate_str(open(sys.argv[1]).read()); sys.exit(str(e) if e else 0)"
    _run(str(TOOLS), "-c", validate, str(out / f"mmcached-{version}.cdx.json"), cwd=out)
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=out)
        python = Path(folder) / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
        _run(*pip, str(wheel), cwd=out)
        said = _run(str(python), "-c", "import mmcached; print(mmcached.__version__)", cwd=out)
        if said.strip() != version:
            raise SystemExit(f"{wheel.name}: mmcached.__version__ is {said.strip()}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build and check a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="an empty or new folder")
    parser.add_argument("--no-images", action="store_true")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    version = project()["version"]
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"--out {out}: must be empty; `make clean` removes dist/")
    seconds = commit_time()
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    print("sdist and wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    _run(*build, str(REPOSITORY), cwd=REPOSITORY)
    _run(*build, "--sdist", str(REPOSITORY / "shm"), cwd=REPOSITORY)
    print("chart, bill of materials")
    pack_chart(out / f"mmcached-chart-{version}.tgz", seconds)
    bill = json.dumps(bill_of_materials(seconds), indent=2)
    (out / f"mmcached-{version}.cdx.json").write_text(bill + "\n")
    for line in () if options.no_images else build_images(out, version):
        print(line)
    write_sums(out)
    check(out, version)
    print(f"checked: {out}")


if __name__ == "__main__":
    main()
