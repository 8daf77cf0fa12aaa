// Shows files of adapters that the kernel does not know: a library for LD_PRELOAD
// (tools/softhca/run
// --files).  Some programs look at /sys/class/infiniband/NAME and /dev/infiniband/NAME before they
// use a device; for paths that begin so, the calls below go to the same path under the folder
// $SOFTHCA_FILES, which `run` fills.
//
// The functions are defined under their link names: the headers' own declarations differ between
// releases of the C library and with large-file support.  Calls inside the C library are not seen.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/types.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

// `path`, or its double in `room`.
const char* shown(const char* path, char (&room)[PATH_MAX]) {
  if (path == nullptr) return path;
  bool ours = false;
  for (const char* prefix : {"/sys/class/infiniband", "/dev/infiniband"}) {
    const std::size_t n = std::strlen(prefix);
    ours = ours || (std::strncmp(path, prefix, n) == 0 && (path[n] == 0 || path[n] == '/'));
  }
  const char* const folder = ours ? std::getenv("SOFTHCA_FILES") : nullptr;
  if (folder == nullptr) return path;
  const int n = std::snprintf(room, sizeof room, "%s%s", folder, path);
  return n < static_cast<int>(sizeof room) ? room : path;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// TP_SHOWN(result, name, declared arguments, passed arguments): the first argument is the path.
#define TP_SHOWN(result, name, declared, passed)              \
  extern "C" result softhca_##name declared __asm__(#name);   \
  extern "C" result softhca_##name declared {                 \
    char room[PATH_MAX];                                      \
    static const auto real = next<result(*) declared>(#name); \
    path = shown(path, room);                                 \
    return real passed;                                       \
  }
// Those with a mode that only some callers pass.
#define TP_OPEN(name)                                                             \
  extern "C" int softhca_##name(const char* path, int flags, ...) __asm__(#name); \
  extern "C" int softhca_##name(const char* path, int flags, ...) {               \
    char room[PATH_MAX];                                                          \
    static const auto real = next<int (*)(const char*, int, mode_t)>(#name);      \
    va_list more;                                                                 \
    va_start(more, flags);                                                        \
    const auto mode = static_cast<mode_t>(va_arg(more, int));                     \
    va_end(more);                                                                 \
    return real(shown(path, room), flags, mode);                                  \
  }
#define TP_OPENAT(name)                                                                   \
  extern "C" int softhca_##name(int at, const char* path, int flags, ...) __asm__(#name); \
  extern "C" int softhca_##name(int at, const char* path, int flags, ...) {               \
    char room[PATH_MAX];                                                                  \
    static const auto real = next<int (*)(int, const char*, int, mode_t)>(#name);         \
    va_list more;                                                                         \
    va_start(more, flags);                                                                \
    const auto mode = static_cast<mode_t>(va_arg(more, int));                             \
    va_end(more);                                                                         \
    return real(at, shown(path, room), flags, mode);                                      \
  }

TP_OPEN(open)
TP_OPEN(open64)
TP_OPENAT(openat)
TP_OPENAT(openat64)
TP_SHOWN(int, __open_2, (const char* path, int flags), (path, flags))
TP_SHOWN(int, __open64_2, (const char* path, int flags), (path, flags))
TP_SHOWN(void*, fopen, (const char* path, const char* mode), (path, mode))
TP_SHOWN(void*, fopen64, (const char* path, const char* mode), (path, mode))
TP_SHOWN(void*, opendir, (const char* path), (path))
TP_SHOWN(int, access, (const char* path, int mode), (path, mode))
TP_SHOWN(int, stat, (const char* path, void* out), (path, out))
TP_SHOWN(int, stat64, (const char* path, void* out), (path, out))
TP_SHOWN(int, lstat, (const char* path, void* out), (path, out))
TP_SHOWN(int, lstat64, (const char* path, void* out), (path, out))
TP_SHOWN(char*, realpath, (const char* path, char* out), (path, out))
TP_SHOWN(char*, canonicalize_file_name, (const char* path), (path))
TP_SHOWN(char*, __realpath_chk, (const char* path, char* out, std::size_t size), (path, out, size))
TP_SHOWN(ssize_t, readlink, (const char* path, char* out, std::size_t size), (path, out, size))
TP_SHOWN(ssize_t, __readlink_chk,
         (const char* path, char* out, std::size_t size, std::size_t room_size),
         (path, out, size, room_size))

// Programs built before glibc 2.33 pass the structure's version in front.
#define TP_OLD_STAT(name)                                                                 \
  extern "C" int softhca_##name(int version, const char* path, void* out) __asm__(#name); \
  extern "C" int softhca_##name(int version, const char* path, void* out) {               \
    char room[PATH_MAX];                                                                  \
    static const auto real = next<int (*)(int, const char*, void*)>(#name);               \
    return real(version, shown(path, room), out);                                         \
  }
TP_OLD_STAT(__xstat)
TP_OLD_STAT(__xstat64)
TP_OLD_STAT(__lxstat)
TP_OLD_STAT(__lxstat64)

// What coreutils use.
#define TP_AT(name, declared, passed)                      \
  extern "C" int softhca_##name declared __asm__(#name);   \
  extern "C" int softhca_##name declared {                 \
    char room[PATH_MAX];                                   \
    static const auto real = next<int(*) declared>(#name); \
    path = shown(path, room);                              \
    return real passed;                                    \
  }
TP_AT(statx, (int at, const char* path, int flags, unsigned mask, void* out),
      (at, path, flags, mask, out))
TP_AT(fstatat, (int at, const char* path, void* out, int flags), (at, path, out, flags))
TP_AT(fstatat64, (int at, const char* path, void* out, int flags), (at, path, out, flags))
TP_AT(faccessat, (int at, const char* path, int mode, int flags), (at, path, mode, flags))
