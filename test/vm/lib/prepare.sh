# shellcheck shell=bash disable=SC2034,SC2154  # names are those of rxe-run
# Part of rxe-run: the kernel and the initramfs, kept in the cache.  Sourced; uses cache,
# kernel_package, more_modules, module_files, here and die; sets kernel, release and initramfs.

# The name of the real package behind a meta package such as linux-image-amd64.
real_package() {
  local name=$1 next
  while :; do
    next=$(apt-cache depends --important "$name" 2>/dev/null |
      sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$next" ] && [ "$next" != "$name" ] || break
    name=$next
  done
  echo "$name"
}

# An uncompressed ELF kernel starts without unpacking itself, which takes seconds under emulation.
# Its place in the file is in the header: setup_sects at 0x1f1, payload_offset at 0x248.
extract_kernel() {
  local packed=$1 plain=$2 offset unpack
  offset=$((($(od -An -tu1 -j497 -N1 "$packed") + 1) * 512 + $(od -An -tu4 -j584 -N4 "$packed") + 1))
  case $(tail -c +$offset "$packed" | head -c 4 | od -An -tx1 | tr -d ' ') in
    fd377a58) unpack='xz -dcq' ;;
    28b52ffd) unpack='zstd -dcq' ;;
    1f8b*) unpack='gzip -dcq' ;;
    *) unpack=false ;;
  esac
  tail -c +$offset "$packed" | $unpack >"$plain" 2>/dev/null
  head -c 4 "$plain" 2>/dev/null | grep -q ELF || cp "$packed" "$plain"
}

# Downloads and unpacks one kernel package into $cache/RELEASE; nothing is installed.
fetch_kernel() {
  local package=$1 release=$2 folder=$cache/$2 archive=$cache/$2.download
  rm -rf "$folder" "$archive"
  mkdir -p "$folder" "$archive"
  (cd "$archive" && apt-get download -o APT::Sandbox::User=root "$package" >&2) ||
    die "the kernel package $package cannot be downloaded; run apt-get update, or fill $cache on another machine"
  dpkg-deb -x "$archive"/*.deb "$folder" || die "$package cannot be unpacked; is $cache full?"
  rm -rf "$archive"
  [ -d "$folder/usr/lib/modules" ] && [ ! -d "$folder/lib/modules" ] && ln -s usr/lib "$folder/lib"
  find "$folder/lib/modules/" -name '*.ko.xz' -print0 | xargs -0 -r -P 2 -n 64 xz -d
  depmod -b "$folder" "$release" || die "depmod failed in $folder"
  find "$folder" -name rdma_rxe.ko | grep -q . ||
    die "$package has no rdma_rxe; take one that has (Debian's linux-image-amd64) with -k"
  extract_kernel "$folder/boot/vmlinuz-$release" "$folder/vmlinux"
  touch "$folder/.ready"
}

# Copies modules in load order into $1/modules and lists them in $1/modules/$2.
add_modules() {
  local tree=$1 list=$2 module action file base _
  shift 2
  : >"$tree/modules/$list"
  for module in "$@"; do
    modprobe -d "$kernel" -S "$release" --show-depends "$module" 2>/dev/null || echo "missing $module"
  done | while read -r action file _; do
    base=${file##*/}
    case $action in
      insmod)
        [ -e "$tree/modules/$base" ] && continue
        cp "$file" "$tree/modules/$base"
        echo "$base" >>"$tree/modules/$list"
        ;;
      missing) echo "rxe-run: Linux $release has no module $file" >&2 ;;
    esac
  done
}

make_initramfs() {
  local tree file boot links
  boot='virtio_pci virtio_console 9pnet_virtio 9p overlay'
  links="ib_uverbs rdma_ucm rdma_rxe veth dummy virtio_net sch_netem $more_modules"
  for file in $module_files; do links="$links $(modinfo -F depends "$file" | tr , ' ')"; done
  # shellcheck disable=SC2086  # lists of files
  initramfs=$kernel/initramfs-$({
    cat "$here/lib/init" "$here/lib/prepare.sh" $module_files
    echo "$links"
  } | sha256sum | cut -c 1-16).cpio
  [ -e "$initramfs" ] && return
  tree=$(mktemp -d "$cache/initramfs.XXXXXX") || die "cannot write to $cache"
  mkdir -p "$tree"/{bin,modules,proc,sys,dev,lower,upper,new}
  if [ -n "${foreign:-}" ]; then  # another architecture's, which does not run here
    cp "$foreign/bin/busybox" "$tree/bin/busybox" || die "$foreign has no bin/busybox; install busybox-static there"
  else
    cp "$(command -v busybox)" "$tree/bin/busybox"
    "$tree/bin/busybox" | grep -q 'multi-call' || die 'busybox does not run; install busybox-static'
  fi
  # shellcheck disable=SC2086  # lists of modules
  { add_modules "$tree" boot $boot; add_modules "$tree" links $links; }
  for file in $module_files; do
    cp "$file" "$tree/modules/"
    echo "${file##*/}" >>"$tree/modules/links"
  done
  cp "$here/lib/init" "$tree/init"
  chmod 755 "$tree/init"
  (cd "$tree" && find . | sort | cpio -o -H newc --quiet -R 0:0) >"$initramfs.$$" || die 'cpio failed'
  mv "$initramfs.$$" "$initramfs"
  rm -rf "$tree"
  find "$kernel" -maxdepth 1 -name 'initramfs-*.cpio' -mtime +30 -delete  # of older scripts
}

prepare() {
  local real
  cache=$(realpath -m "$cache")
  mkdir -p "$cache" || die "cannot make $cache; name another cache with -c"
  exec 9>"$cache/.lock"
  flock 9
  if [ ! -e "$cache/$kernel_package/.ready" ]; then
    real=$(real_package "$kernel_package")
    release=${real#linux-image-}
    release=${release%-unsigned}
    [ -e "$cache/$release/.ready" ] || fetch_kernel "$real" "$release"
    ln -sfn "$release" "$cache/$kernel_package"
  fi
  kernel=$(realpath "$cache/$kernel_package")
  release=${kernel##*/}
  make_initramfs
  flock -u 9
  exec 9>&-
}
