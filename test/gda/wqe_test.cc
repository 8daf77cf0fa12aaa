// Bytes: WQEs against golden ones worked out by hand from the PRM, doorbells, CQEs.
#include "gda/abi/wqe.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "gda/abi/abi.h"
#include "gda/abi/cqe.h"
#include "gda/abi/producer.h"
#include "gda/served/front/decode.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"

using namespace twinpath::gda;

namespace {

constexpr std::uint32_t kQpn = 0x123;

std::string hex(const Wqe& wqe) {
  const char* digits = "0123456789abcdef";
  std::string out;
  const std::size_t end = wqe.end != 0 ? wqe.end : wqe.segments * 16;
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned>(wqe.words[i / 8] >> i % 8 * 8 & 0xff);
    if (i > 0 && i % 4 == 0) out += i % 16 == 0 ? " | " : " ";
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("WQEs have the bytes an adapter expects") {
  CHECK(hex(make_write(5, kQpn, 0x1000, swap32(0xa01), 0x2000, swap32(0xb01), 4096)) ==
        "00000508 00012303 00000008 00000000 | 00000000 00001000 00000a01 00000000 | "
        "00001000 00000b01 00000000 00002000");
  CHECK(hex(make_fetch_add(6, kQpn, 0x18, swap32(0xa01), 1, swap32(0xb01))) ==
        "00000612 00012304 00000008 00000000 | 00000000 00000018 00000a01 00000000 | "
        "00000000 00000001 00000000 00000001 | 00000008 00000b01 00000000 00000000");
  CHECK(hex(make_nop(0x1fffe, kQpn)) == "00fffe00 00012301 00000008 00000000");
  CHECK(hex(make_wait(7, kQpn, 0x1'8000'0001u, 0x45)) ==
        "0000070f 00012302 00000008 00000000 | 00000000 00000000 80000001 00000045");
  CHECK(hex(make_read(8, kQpn, 0x10, swap32(0xa01), 0x20, swap32(0xb01), 64)) ==
        "00000810 00012303 00000008 00000000 | 00000000 00000010 00000a01 00000000 | "
        "00000040 00000b01 00000000 00000020");
  CHECK(hex(make_dump(9, kQpn, swap32(0xc01))) ==
        "00000923 00012302 00000008 00000000 | 00000001 00000c01 00000000 00000000");
  const std::uint8_t data[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  CHECK(hex(make_write_inline(10, kQpn, 0x30, swap32(0xa01), data, 8)) ==
        "00000a08 00012303 00000008 00000000 | 00000000 00000030 00000a01 00000000 | "
        "80000008 01020304 05060708");
  CHECK(hex(make_write_inline(10, kQpn, 0x30, swap32(0xa01), data, 13)) ==
        "00000a08 00012304 00000008 00000000 | 00000000 00000030 00000a01 00000000 | "
        "8000000d 01020304 05060708 090a0b0c | 0d");
}

TEST_CASE("A put's byte count never sets the inline flag") {
  const Wqe wqe = make_write(0, kQpn, 0, 0, 0, 0, 0xffffffff);
  CHECK(first_dword(wqe.words[4]) == 0x7fffffff);
}

TEST_CASE("An adapter's doorbell carries 24 bits of the count and the QPN") {
  CHECK(adapter_doorbell(7, kQpn) == 0x0023010000070000u);
  CHECK(doorbell_record(7) == 0x07000000u);
  CHECK(doorbell_record(0x12345) == swap32(0x2345));
  CHECK(adapter_doorbell_qpn(adapter_doorbell(7, 0xabcdef)) == 0xabcdef);

  for (const std::uint64_t last :
       {std::uint64_t{0}, std::uint64_t{0xfffffe}, std::uint64_t{0xffffff}, std::uint64_t{1} << 24,
        (std::uint64_t{1} << 32) - 3, (std::uint64_t{1} << 48) + 0xffffff}) {
    for (const std::int32_t ahead : {0, 1, 2, 5, 32768, 0x7fffff, -1, -2, -32768, -0x800000}) {
      const std::uint64_t count = last + static_cast<std::uint64_t>(std::int64_t{ahead});
      CHECK(adapter_doorbell_ahead(adapter_doorbell(count, kQpn), last) == ahead);
    }
  }
}

TEST_CASE("The owner bit of a CQE is the parity of its lap") {
  constexpr std::uint32_t kDepth = 16;
  CqeBytes cqe;
  std::memset(cqe, kCqeFill, sizeof cqe);
  const auto last = [&] {
    std::uint32_t value = 0;
    std::memcpy(&value, cqe + 60, 4);
    return value;
  };
  CHECK(cqe_opcode(last()) == CqeOpcode::invalid);
  CHECK_FALSE(cqe_is_of_lap(last(), 0, kDepth));
  for (std::uint64_t index = 0; index < 3 * kDepth; ++index) {
    make_cqe(cqe, index, kDepth, kQpn, 0x08, 4096);
    CHECK(cqe[63] == (index / kDepth) % 2);
    CHECK(cqe_is_of_lap(last(), index, kDepth));
    CHECK_FALSE(cqe_is_of_lap(last(), index + kDepth, kDepth));
    CHECK(cqe_counter(last()) == index);
  }
}

TEST_CASE("CQEs have the bytes an adapter writes") {
  CqeBytes cqe;
  make_cqe(cqe, 0x12345, 0x8000, kQpn, 0x08, 4096);
  const std::uint8_t ok_end[] = {0x08, 0x00, 0x01, 0x23, 0x23, 0x45, 0x00, 0x00};
  CHECK(std::memcmp(cqe + 56, ok_end, 8) == 0);
  CHECK((cqe[44] == 0 && cqe[45] == 0 && cqe[46] == 0x10 && cqe[47] == 0));
  make_error_cqe(cqe, 0x1a345, 0x8000, kQpn, 0x12, Syndrome::remote_access);
  const std::uint8_t error_end[] = {0x13, 0x12, 0x00, 0x01, 0x23, 0xa3, 0x45, 0x00, 0xd1};
  CHECK(std::memcmp(cqe + 55, error_end, 9) == 0);
  CHECK(cqe_syndrome(cqe) == Syndrome::remote_access);
}

TEST_CASE("A device queue is filled as kernels expect it") {
  const auto qp = make_device_qp<DeviceQp30>(0x123, 0x45, 128, 0x1000, 0x2000, 0x3000, 0x4004,
                                             NicHandler::gpu_sm_db);
  std::uint8_t bytes[sizeof qp];
  std::memcpy(bytes, &qp, sizeof qp);
  const std::uint8_t be_5ds[] = {0x00, 0x01, 0x23, 0x05};
  CHECK(std::memcmp(bytes + 52, be_5ds, 4) == 0);
  const std::uint8_t be[] = {0x00, 0x01, 0x23, 0x00};
  CHECK(std::memcmp(bytes + 32, be, 4) == 0);
  CHECK((bytes[60] == 128 && bytes[62] == 127 && bytes[288] == 2 && bytes[292] == 2));
  CHECK((bytes[160 + 8] == 0x45 && bytes[160 + 12] == 128 && bytes[160 + 36] == 6));
}
