# shellcheck shell=bash
# For siw-build and softhca-build: what a module for the kernel of the cache is compiled with.
# Sourced.

# depends_on PACKAGE PREFIX: the first package of that prefix on which it depends, without it.
depends_on() {
  apt-cache depends "$1" 2>/dev/null | sed -n "s/.*Depends: $2-\([0-9].*\)/\1/p" | head -n 1
}

# kernel_release CACHE [PACKAGE]: the kernel that rxe-run has in that folder, else the newest.
kernel_release() {
  local image=${2:-linux-image-amd64}
  if [ -e "$1/$image" ]; then
    basename "$(realpath "$1/$image")"
  else
    depends_on "$image" linux-image
  fi
}

# fetch_headers RELEASE [PACKAGE...]: in the current folder, headers/ unpacked and the packages in
# download/.  Nothing is installed.
fetch_headers() {
  local release=$1 package
  shift
  mkdir download || return
  # linux-kbuild-6.1, but linux-kbuild-6.12.95+deb12.
  (cd download && apt-get download -o APT::Sandbox::User=root "linux-headers-$release" \
    "linux-headers-${release%-a[mr][dm]64*}-common" \
    "linux-kbuild-$(depends_on "linux-headers-$release" linux-kbuild):$(dpkg --print-architecture)" \
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
