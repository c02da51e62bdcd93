#!/usr/bin/env bash
# Find Java 17 or newer and print its home. If there is none, install one if permitted, or print how to.
set -u
least=17

version() { # of a java command, as one number: 17 for "17.0.15", 8 for "1.8.0"
  "$1" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

find_java() {
  local java
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java)" /usr/lib/jvm/*/bin/java; do
    [ -x "$java" ] || continue
    [ "$(version "$java")" -ge "$least" ] 2>/dev/null || continue
    dirname "$(dirname "$(readlink -f "$java")")"
    return 0
  done
  return 1
}

install_java() {
  command -v apt-get >/dev/null || return 1
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    root=(sudo -n)
  fi
  echo "java.sh: there is no Java $least or newer; installing it with apt-get" >&2
  local quick=(-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  "${root[@]}" apt-get "${quick[@]}" -qq update >&2 || true
  local package
  for package in openjdk-17-jre-headless default-jre-headless; do
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quick[@]}" -qq install -y "$package" >&2 && return 0
  done
  return 1
}

find_java || { install_java && find_java; } || {
  cat >&2 <<END
java.sh: Java $least or newer is not installed. Spark needs it; the embedded engine does not.
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless
  Fedora:          sudo dnf install java-17-openjdk-headless
  macOS:           brew install openjdk@17
Or set JAVA_HOME to where one is.
END
  exit 1
}
