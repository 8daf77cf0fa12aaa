#pragma once
// Files that a setting names or that lie in a folder of others, who may have put a device, a FIFO
// or a gigabyte where a small file is expected: none of them is waited for or read on and on.
//
// Threads: any.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/base/owned.h"

namespace twinpath {

// The whole of a regular file, /proc's and /sys's among them.  Null and `why` (what follows the
// file's name in a sentence) for what cannot be opened, is no regular file, or has more than `most`
// bytes; no more than that is ever read.
std::optional<std::string> read_file(const std::string& path, std::size_t most, std::string& why);
// Its first `bytes`, or all of a shorter one.
std::optional<std::string> read_head(const std::string& path, std::size_t bytes, std::string& why);

// Readers see the old file or the new one.  The new one is made beside it under a name that nobody
// can know before, so that whatever others put into the folder is neither opened nor written to.
// `mode` as of chmod.  False and `why`: the file is as it was.
bool replace_file(const std::string& path, std::string_view data, unsigned mode, std::string& why);

// False and errno: some of it may have been written.
bool write_all(int fd, std::string_view data);

// Memory of that name which another process has open, by its link in /proc/PID/fd.  Where the link
// leads is that process's choice, perhaps another user's, and may change at any moment: it is
// looked at before it is opened, so that nothing but memory ever is (opening a device or a FIFO has
// effects, and a file may be one that only this process may read).  `access`: O_RDONLY or O_RDWR.
// Empty and `why` for anything else.
UniqueFd open_foreign_memory(const std::string& link, const char* name, int access,
                             std::string& why);

}  // namespace twinpath
