# shellcheck shell=bash
# For siw-build and softhca-build: what a module for the kernel of the cache is compiled with.
# Sourced.

# The kernel that rxe-run has in cache folder $1, else the newest.
kernel_release() {
  if [ -e "$1/linux-image-amd64" ]; then
    basename "$(realpath "$1/linux-image-amd64")"
  else
    apt-cache depends linux-image-amd64 2>/dev/null |
      sed -n 's/.*Depends: linux-image-\([0-9].*\)/\1/p' | head -n 1
  fi
}

# fetch_headers RELEASE [PACKAGE...]: in the current folder, headers/ unpacked and the packages in
# download/.  Nothing is installed.
fetch_headers() {
  local release=$1 package kbuild
  shift
  # linux-kbuild-6.1, but linux-kbuild-6.12.95+deb12.
  kbuild=$(apt-cache depends "linux-headers-$release" 2>/dev/null | sed -n 's/.*Depends: \(linux-kbuild-.*\)/\1/p' | head -n 1)
  mkdir download || return
  (cd download && apt-get download -o APT::Sandbox::User=root "linux-headers-$release" \
    "linux-headers-${release%-amd64}-common" "${kbuild:-linux-kbuild-none}" \
    "$@") >&2 || return
  for package in download/linux-headers-* download/linux-kbuild-*; do
    dpkg-deb -x "$package" headers || return
  done
  # Types of the kernel, for debuggers alone: with them pahole would be needed.
  rm -f "headers/usr/src/linux-headers-$release/vmlinux"
  sed -i "s,/usr/src,$PWD/headers/usr/src,g" "headers/usr/src/linux-headers-$release/Makefile"
}

# make_module RELEASE FOLDER [SETTING...]: in the current folder, that of fetch_headers.
make_module() {
  local release=$1 folder=$2
  shift 2
  make -s -C "headers/usr/src/linux-headers-$release" M="$folder" "$@" modules >&2
}
