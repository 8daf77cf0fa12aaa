#pragma once
// The receiving end of a connection: offers buffers to the sender by clear-to-send cells and
// counts what arrives by the immediates of the sender's writes.
//
// Threads: irecv, iflush and tests from one thread at a time; all state is under the hub's lock
// because any comm that polls a shared CQ may deliver our completions.  Registration: any thread.
#include <array>
#include <vector>

#include "proxy/connect/connection.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/receive/flush.h"
#include "proxy/receive/staged_recv.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

class ProxyRecvComm;

class RecvRequest final : public Request {
 public:
  Status test(Completion& out) override;

 private:
  friend class ProxyRecvComm;
  struct Sub {
    std::size_t bytes = 0;
    std::uint8_t expected = 0;  // chunks; 0 until the first arrives
    std::uint8_t arrived = 0;
  };
  ProxyRecvComm* comm_ = nullptr;
  std::uint64_t first_cell_ = 0;
  std::array<Sub, kMaxRecvs> subs_{};
  std::uint8_t count_ = 0;
  std::uint8_t left_ = 0;  // subs not complete
  std::uint8_t slot_ = 0;
  std::uint8_t generation_ = 0;
  std::uint8_t staged_ = 0;  // a bit for each sub that lands in its mirror first
  bool active_ = false;
  bool optional_ = false;
};
static_assert(kMaxRecvs <= 8);

class FlushRequest final : public Request {
 public:
  Status test(Completion& out) override;

 private:
  friend class ProxyRecvComm;
  ProxyRecvComm* comm_ = nullptr;
  std::uint16_t slot_ = 0;
  std::uint16_t generation_ = 0;
  std::uint32_t rails_ = 0;  // a bit each
  int pending_ = 0;
  bool active_ = false;
};

class ProxyRecvComm final : public RecvComm, private CompletionSink, private HeldWork {
 public:
  ProxyRecvComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  ~ProxyRecvComm() override;

  Status irecv(std::span<const RecvBuffer> buffers, bool completion_optional,
               Request** request) override;
  Status iflush(std::span<const RecvBuffer> buffers, Request** request) override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class RecvRequest;
  friend class FlushRequest;
  Status test(RecvRequest& request, Completion& out);
  Status test(FlushRequest& request, Completion& out);
  void on_completion(const WrId& id, const ibv_wc& wc) override;
  void post_held() override;
  void on_data(const ibv_wc& wc, int queue);
  // What an immediate announces; false when it makes no sense here (a reason given already holds).
  bool take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue);
  bool take_parcel(std::uint32_t bits);
  // The request in that slot if it waits for that part, else null.
  RecvRequest* expecting(int slot, int sub, int generation);
  void sub_complete(RecvRequest& request);
  // Of a staged sub (staged_recv.cc): more has arrived, copy it on; false when it is too much.
  bool land(RecvRequest& request, int sub, bool in_order);
  bool land_parcel(RecvRequest& request, int sub, void* to, const ParcelPlace& from);
  void copy_on();
  void prepare_staging();
  void repost(int queue);
  void post_cells();
  bool flush_wanted() const;

  std::shared_ptr<SessionCore> core_;
  const int device_;
  std::unique_ptr<RegisteredBuffer> shadow_;
  CtsLayout layout_;
  std::unique_ptr<PeerLink> link_;
  CtsWriter cts_;
  FlushQueues flush_;
  const EndPlan plan_;
  std::unique_ptr<StagedReceives> staged_;  // made with the first memory to be staged

  std::array<RecvRequest, kRecvSlots> requests_;
  std::array<std::uint8_t, kRecvSlots> free_;
  int free_count_ = 0;
  std::array<FlushRequest, kFlushSlots> flushes_;
  std::array<int, kMaxQps> unposted_{};  // receive work requests used up, by queue
  int idle_tests_ = 0;                   // tests in a row that found no completion
  std::uint32_t carried_ = 0;            // rails that brought data since the last flush, a bit each
};

}  // namespace twinpath
