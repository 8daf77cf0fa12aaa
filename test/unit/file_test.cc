// Files and memory that others named, or may have put in the way.
#include "plugin/base/file.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "test/support/catch.h"

namespace twinpath {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(name_.data()) != nullptr); }
  ~Folder() { fs::remove_all(name_); }
  std::string operator/(const char* name) const { return name_ + "/" + name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(name_), fs::directory_iterator{}));
  }

 private:
  std::string name_ = "/tmp/twinpath-file-XXXXXX";
};

std::string complaint_of(const std::string& path, std::size_t most) {
  std::string why;
  return read_file(path, most, why) ? "" : why;
}

}  // namespace

TEST_CASE("A file is read whole, and one that is too large is no more than noticed") {
  const Folder folder;
  std::ofstream(folder / "a") << std::string(40000, 'x');
  std::string why;
  CHECK(read_file(folder / "a", 40000, why)->size() == 40000);
  CHECK(complaint_of(folder / "a", 39999) == "has more than 39999 bytes");
  CHECK(*read_head(folder / "a", 3, why) == "xxx");
  CHECK(read_head(folder / "a", 50000, why)->size() == 40000);
  // A hole of 1 TiB: who reads it all before looking is at it for minutes.
  std::ofstream(folder / "hole").close();
  fs::resize_file(folder / "hole", std::uintmax_t{1} << 40);
  CHECK(complaint_of(folder / "hole", 1u << 20) == "has more than 1 MiB");
  // Its size is told as 0.
  CHECK(read_file("/proc/self/status", 1u << 16, why)->starts_with("Name:"));
}

TEST_CASE("What is no regular file is refused at once") {
  const Folder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(complaint_of(folder / "fifo", 100) == "is a FIFO, not a file");
  CHECK(complaint_of("/dev/zero", 100) == "is a device, not a file");
  CHECK(complaint_of("/", 100) == "cannot be read: Is a directory");
  CHECK(complaint_of(folder / "none", 100) == "cannot be read: No such file or directory");
}

TEST_CASE("A file is replaced whatever stands in its place, and links are not followed") {
  const Folder folder;
  std::string why;
  REQUIRE(::mkfifo((folder / "a").c_str(), 0666) == 0);
  REQUIRE(::mkfifo((folder / "a.new").c_str(), 0666) == 0);
  REQUIRE(replace_file(folder / "a", "one", 0640, why));
  CHECK(*read_file(folder / "a", 10, why) == "one");
  CHECK((fs::status(folder / "a").permissions() & fs::perms::all) == fs::perms{0640});
  std::ofstream(folder / "other") << "keep";
  fs::create_symlink(folder / "other", folder / "b");
  REQUIRE(replace_file(folder / "b", "two", 0600, why));
  CHECK(*read_file(folder / "other", 10, why) == "keep");
  CHECK(*read_file(folder / "b", 10, why) == "two");
  CHECK(folder.entries() == 4);
}

TEST_CASE("A file that cannot be replaced is as it was, and nothing is left beside it") {
  const Folder folder;
  std::string why;
  CHECK_FALSE(replace_file(folder / "none/a", "x", 0600, why));
  CHECK(why == "cannot be written: No such file or directory");
  fs::create_directories(folder / "b/c");
  CHECK_FALSE(replace_file(folder / "b", "x", 0600, why));
  CHECK(folder.entries() == 1);
}

TEST_CASE("Of another process's descriptors only memory of the right name is opened") {
  const Folder folder;
  const std::string secret = folder / "secret";
  std::ofstream(secret) << "x";
  const UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(watch.get(), secret.c_str(), IN_OPEN) >= 0);
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  const UniqueFd file(::open(secret.c_str(), O_PATH | O_CLOEXEC));
  const UniqueFd fifo(::open((folder / "fifo").c_str(), O_PATH | O_CLOEXEC));
  const UniqueFd zero(::open("/dev/zero", O_PATH | O_CLOEXEC));
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  const UniqueFd right(::memfd_create("right", MFD_CLOEXEC));
  const auto open = [](int fd, int access) {
    std::string why;
    return open_foreign_memory("/proc/self/fd/" + std::to_string(fd), "right", access, why);
  };
  for (const int fd : {file.get(), fifo.get(), zero.get(), other.get()}) {
    CAPTURE(fd);
    CHECK_FALSE(open(fd, O_RDONLY));
    CHECK_FALSE(open(fd, O_RDWR));
  }
  std::array<char, 512> events;
  CHECK(::read(watch.get(), events.data(), events.size()) == -1);  // it was not opened
  const UniqueFd again = open(right.get(), O_RDWR);
  REQUIRE(again);
  CHECK(again.get() != right.get());
  CHECK(::ftruncate(again.get(), 10) == 0);
  CHECK(::ftruncate(open(right.get(), O_RDONLY).get(), 20) != 0);
}

TEST_CASE("A file that is named as memory is shown does not pass for it") {
  // What only who may write to the root folder, or has mounted one of his own, can make.
  const std::string name = "/memfd:right (deleted)";
  const UniqueFd made(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made) return;
  std::string why;
  CHECK_FALSE(
      open_foreign_memory("/proc/self/fd/" + std::to_string(made.get()), "right", O_RDONLY, why));
  CHECK(::unlink(name.c_str()) == 0);
}

}  // namespace twinpath
