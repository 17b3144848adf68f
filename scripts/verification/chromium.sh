#!/bin/sh
# Brings a headless Chromium for `make test-web` below .chromium (550 MB), and installs nothing: Debian's packages are downloaded and unpacked.
#
# Needs Debian's apt-get and dpkg-deb. What the machine has of the libraries is downloaded all the same: it may be another version.
set -eu
cd "$(dirname "$0")/../.."
home=$PWD/.chromium
[ ! -e "$home/installed" ] || [ "$home/installed" -ot "$0" ] || exit 0
rm -rf "$home"
mkdir -p "$home/debs"
: > "$home/status"

# As on a machine where nothing is installed, so that every library is named; the C library is this machine's.
packages=$(apt-get -s -o Dir::State::status="$home/status" -o Debug::NoLocking=1 --no-install-recommends install chromium-headless-shell \
    fonts-dejavu-core | awk '/^Inst/ { print $2 }' | grep -v -x -E 'libc6|libgcc-s1|gcc-.*-base|dpkg|tar|perl-base|debconf|libc-bin')
(cd "$home/debs" && apt-get -qq download $packages)
for package in "$home"/debs/*.deb; do dpkg-deb -x "$package" "$home/root"; done
rm -r "$home/debs"

cat > "$home/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>$home/root/usr/share/fonts</dir><cachedir>$home/fonts</cachedir>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias></fontconfig>
END
libraries=$(find "$home/root" -name '*.so*' -printf '%h\n' | sort -u | grep -v -E '/(gconv|perl|security|dri|girepository-1.0)' | tr '\n' ':')
cat > "$home/chromium" <<END
#!/bin/sh
export LD_LIBRARY_PATH="$libraries" FONTCONFIG_FILE="$home/fonts.conf"
exec "$home/root/usr/lib/chromium/chromium-headless-shell" "\$@"
END
chmod +x "$home/chromium"
"$home/chromium" --version
: > "$home/installed"
