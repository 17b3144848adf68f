#!/bin/sh
# Brings valkey-server below .valkey (40 MB) for `make test-valkey`, and installs nothing: Debian packages are downloaded and unpacked.
#
# Needs Debian's apt-get and dpkg-deb. The release that has Valkey may be newer than the machine's, so its C library comes along.
set -eu
cd "$(dirname "$0")/../.."
suite=trixie
home=$PWD/.valkey
[ ! -e "$home/installed" ] || [ "$home/installed" -ot "$0" ] || exit 0
rm -rf "$home"
mkdir -p "$home/state/lists/partial" "$home/cache/archives/partial" "$home/debs" "$home/bin"
: > "$home/status"

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$home/sources.list"
export APT_CONFIG="$home/apt.conf"
cat > "$APT_CONFIG" <<END
Dir::State "$home/state";
Dir::State::status "$home/status";
Dir::Cache "$home/cache";
Dir::Etc::sourcelist "$home/sources.list";
Dir::Etc::sourceparts "-";
Debug::NoLocking "1";
END
apt-get -qq update
packages=$(apt-get -s --no-install-recommends install valkey-server | awk '/^Inst (valkey|lib)/ { print $2 }')
(cd "$home/debs" && apt-get -qq download $packages)
for package in "$home"/debs/*.deb; do dpkg-deb -x "$package" "$home/root"; done
rm -r "$home/debs" "$home/state" "$home/cache"

libraries=$(find "$home/root" -name '*.so*' -printf '%h\n' | sort -u | tr '\n' ':')
linker=$(find "$home/root" -name 'ld-linux-*' -type f | head -n 1)
cat > "$home/bin/valkey-server" <<END
#!/bin/sh
exec "$linker" --library-path "$libraries" "$home/root/usr/bin/valkey-server" "\$@"
END
chmod +x "$home/bin/valkey-server"
"$home/bin/valkey-server" --version
: > "$home/installed"
