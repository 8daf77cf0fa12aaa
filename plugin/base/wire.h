#pragma once
// Explicit little-endian encoding with bounds checks: what goes over the control socket.
// A Reader never reads past its end: after a short read ok() is false and all further
// values are zero, so decoders check once at the end.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinpath {

class Writer {
 public:
  template <class T>
  void integer(T v) {
    static_assert(std::is_integral_v<T>);
    auto u = static_cast<std::make_unsigned_t<T>>(v);
    std::uint8_t out[sizeof(T)];
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out[i] = static_cast<std::uint8_t>((static_cast<std::uint64_t>(u) >> (8 * i)) & 0xff);
    raw(out, sizeof out);
  }
  // Not inline: g++ 13 at -O3 sees overflows in vectors that it sees grow.
  void raw(const void* p, std::size_t n);
  // u16 length, then the bytes; longer strings are cut at 65535.
  void text(std::string_view s) {
    std::size_t n = s.size() < 65535 ? s.size() : 65535;
    integer(static_cast<std::uint16_t>(n));
    raw(s.data(), n);
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  T integer() {
    static_assert(std::is_integral_v<T>);
    std::uint64_t v = 0;
    if (!need(sizeof(T))) return T{};
    for (std::size_t i = 0; i < sizeof(T); ++i) v |= std::uint64_t{bytes_[at_ + i]} << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(v);
  }
  void raw(void* p, std::size_t n) {
    if (!need(n)) {
      std::memset(p, 0, n);
      return;
    }
    std::memcpy(p, bytes_.data() + at_, n);
    at_ += n;
  }
  std::string text() {
    std::size_t n = integer<std::uint16_t>();
    if (!need(n)) return {};
    std::string s(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return s;
  }
  void skip(std::size_t n) {
    if (need(n)) at_ += n;
  }
  std::size_t left() const { return ok_ ? bytes_.size() - at_ : 0; }
  bool ok() const { return ok_; }

 private:
  bool need(std::size_t n) {
    if (ok_ && bytes_.size() - at_ >= n) return true;
    ok_ = false;
    return false;
  }
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

// Text of the peer as our log may have it: no control characters, and not longer than `most`.
std::string loggable(std::string text, std::size_t most = 255);

}  // namespace twinpath
