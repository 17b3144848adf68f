#!/bin/sh
# Runs tests of shared memory on AArch64: Debian's arm64 Python under qemu-user, whose control words go through libatomic.
#
#   scripts/verification/aarch64.sh                                      what lies in shared memory, tests/shm but for tensors
#   scripts/verification/aarch64.sh -m scripts.verification.chaos        any other command of that Python
#
# Needs Debian's apt-get and dpkg-deb and a Python of the same version as Debian's, and installs nothing: packages are
# downloaded and unpacked below .aarch64 (300 MB), wheels as constraints.txt says. Takes minutes.
#
# What it shows: that the AArch64 code runs, its locks, its fences by name, its sizes. What it does not: that an order is
# missing. qemu translates fences, and what it runs on may keep stores in order whether they are there or not. The page
# faults of a process are qemu's, so one test is left out.
set -eu
cd "$(dirname "$0")/../.."
home=$PWD/.aarch64
export APT_CONFIG="$home/apt.conf"

unpack() {  # FOLDER PACKAGE...
    folder=$1; shift
    mkdir -p "$home/debs/$folder" "$home/$folder"
    (cd "$home/debs/$folder" && apt-get -qq download "$@")
    for package in "$home/debs/$folder"/*.deb; do dpkg-deb -x "$package" "$home/$folder"; done
    rm -r "$home/debs/$folder"
}

if [ ! -e "$home/installed" ]; then
    rm -rf "$home"
    mkdir -p "$home/state/lists/partial" "$home/cache/archives/partial"
    : > "$home/status"
    APT_CONFIG= unpack qemu qemu-user-static
    cat > "$APT_CONFIG" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$home/state";
Dir::State::status "$home/status";
Dir::Cache "$home/cache";
Debug::NoLocking "1";
END
    apt-get -qq update
    unpack root $(apt-get -s --no-install-recommends install python3 libatomic1 libstdc++6 | awk '/^Inst/ { print $2 }')
    cat > "$home/python" <<END
#!/bin/sh
exec "$home/qemu/usr/bin/qemu-aarch64-static" -L "$home/root" "$home/root/usr/bin/python3" "\$@"
END
    chmod +x "$home/python"
    version=$("$home/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "${PIP_PYTHON:-.venv/bin/python}" -m pip install --quiet --target "$home/site" --constraint constraints.txt \
        --only-binary :all: --python-version "$version" --implementation cp \
        --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        hypothesis msgpack msgspec numpy posix_ipc pytest pytest-timeout pyzmq structlog
    echo "import sys; sys.executable = '$home/python'  # what starts children" > "$home/site/sitecustomize.py"
    : > "$home/installed"
fi
export PYTHONPATH="$PWD/shm:$PWD/frontend:$PWD/engine:$PWD/worker:$home/site" PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || set -- -m pytest -q -p no:cacheprovider -o timeout=1800 -o faulthandler_timeout=0 \
    --deselect tests/shm/segment/test_populate.py::test_without_it_each_page_is_a_fault \
    tests/shm/segment tests/shm/ring tests/shm/files tests/shm/test_crash_points.py tests/shm/test_faults.py
exec "$home/python" "$@"
