#!/usr/bin/env bash
# Make the virtual environment named by the first argument and install Tocsin in it; with `dev` as the second argument,
# also install what its tests need, including a browser for the console tests.
# PYTHON sets the Python to use; the default is the first of python3, python3.14 … python3.11 that is new enough.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?which folder}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
  if new_enough "$candidate"; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  cat >&2 <<END
setup.sh: Tocsin needs Python 3.11 or newer, and ${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>/dev/null || echo missing).
  Debian 12, Ubuntu 24.04 and newer:  sudo apt-get install python3 python3-venv
Or set the Python to use:  make PYTHON=/path/to/python3.11 …
END
  exit 1
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  # Debian and Ubuntu have this part of Python in a separate package.
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  if ! { command -v apt-get >/dev/null && "${root[@]}" apt-get -qq update && "${root[@]}" apt-get -qq install -y "$package"; } >&2; then
    echo "setup.sh: this Python cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install $package" >&2
    exit 1
  fi
fi

new_enough "$venv/bin/python" || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
if [ "${2:-}" != dev ]; then
  exec "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[service]'
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[service]' --group dev

# Where no browser can be had, the console's tests are skipped and say so.
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && command -v apt-get >/dev/null; then
  root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  { "${root[@]}" apt-get -qq update && "${root[@]}" apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 ||
    echo "setup.sh: no chromium; the console's tests will be skipped" >&2
fi
