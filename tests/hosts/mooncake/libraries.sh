#!/bin/sh
# Prints a LD_LIBRARY_PATH with what Mooncake's wheel needs of the system, or nothing where that is installed. Installs nothing: Debian's
# packages are downloaded and unpacked below .mooncake (2 MB), which needs apt-get and dpkg-deb.
set -eu
cd "$(dirname "$0")/../../.."
home=$PWD/.mooncake
if ! ldconfig -p | grep -q libibverbs.so.1 && { [ ! -e "$home/installed" ] || [ "$home/installed" -ot "$0" ]; }; then
    rm -rf "$home"
    mkdir -p "$home/debs"
    (cd "$home/debs" && apt-get -qq download libibverbs1 libnl-3-200 libnl-route-3-200 >&2)
    for package in "$home"/debs/*.deb; do dpkg-deb -x "$package" "$home/root"; done
    rm -r "$home/debs"
    : > "$home/installed"
fi
[ ! -e "$home/installed" ] || find "$home/root" -name '*.so.*' -printf '%h\n' | sort -u | tr '\n' ':'
