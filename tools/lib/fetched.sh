# shellcheck shell=bash disable=SC2154  # names are those of the script that reads this
# Part of tools/test.sh: programs of others that tests run where they can be had, unpacked in build-test and
# not installed.  Sourced; uses install.

# rdma-core's own tests in Python, which drive the soft HCA's libmlx5: unpacked, not installed, as
# their packages bring udev.
fetch_pyverbs() {
  python3 -c 'import pyverbs.device' 2>/dev/null && return 0
  [ "$install" = yes ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  local folder=$PWD/build-test/pyverbs
  if [ ! -d "$folder/usr" ]; then
    mkdir -p "$folder"
    (cd "$folder" && apt-get download -q python3-pyverbs python3-scapy &&
      for p in *.deb; do dpkg -x "$p" . || exit 1; done) >/dev/null 2>&1 || return 1
  fi
  export SOFTHCA_PYVERBS=$folder
}

# A Prometheus for the exporter's test: unpacked, not installed, as its package starts a server.
fetch_prometheus() {
  command -v prometheus >/dev/null && command -v promtool >/dev/null && return 0
  [ "$install" = yes ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  local folder=$PWD/build-test/prometheus
  if [ ! -x "$folder/usr/bin/promtool" ]; then
    mkdir -p "$folder"
    (cd "$folder" && apt-get download -q prometheus && dpkg -x prometheus_*.deb . &&
      rm prometheus_*.deb) >/dev/null 2>&1 || return 1
  fi
  PATH=$PATH:$folder/usr/bin
}

# Mooncake's transfer engine, a wheel for this Python.
fetch_mooncake() {
  python3 -c 'import mooncake.engine' 2>/dev/null && return 0
  local folder=$PWD/build-test/mooncake
  if [ ! -d "$folder/mooncake" ]; then
    [ "$install" = yes ] && python3 -m pip --version >/dev/null 2>&1 || return 1
    mkdir -p "$folder"
    (cd "$folder" && timeout 120 python3 -m pip download -q --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1 &&
      python3 -m zipfile -e ./*.whl . && rm ./*.whl) >/dev/null 2>&1 || return 1
  fi
  export SOFTHCA_MOONCAKE=$folder
}
