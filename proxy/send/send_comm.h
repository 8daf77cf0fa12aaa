#pragma once
// The sending end of a connection: finds the clear-to-send cell for a message and writes the
// message to where the cell says.
//
// Threads: isend and tests from one thread at a time; all state is under the hub's lock because
// any comm that polls a shared CQ may deliver our completions.  Registration: any thread.
#include <array>
#include <bitset>

#include "proxy/connect/connection.h"
#include "proxy/queues/depths.h"
#include "proxy/send/send_batch.h"
#include "proxy/send/staged_send.h"
#include "proxy/wire/stripe.h"

namespace twinpath {

class ProxySendComm;

class SendRequest final : public Request {
 public:
  Status test(Completion& out) override;

 private:
  friend class ProxySendComm;
  static constexpr std::uint16_t kNone = 0xffff;
  ProxySendComm* comm_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint16_t slot_ = 0;
  std::uint16_t generation_ = 0;
  std::uint16_t before_ = 0;  // slot of the one before it in its batch, or kNone
  std::uint8_t pending_ = 0;  // writes without completion
  bool active_ = false;
  bool chunked_ = false;  // staged, in several writes on one queue
};

class ProxySendComm final : public SendComm, private CompletionSink, private HeldWork {
 public:
  ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  ~ProxySendComm() override;

  Status isend(void* data, std::size_t bytes, int tag, Memory* memory, Request** request) override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class SendRequest;
  Status test(SendRequest& request, Completion& out);
  void on_completion(const WrId& id, const ibv_wc& wc) override;
  void post_held() override;

  // Position of the first cell with that tag that is ready and unused; false when there is none.
  bool find_cell(int tag, std::uint64_t& seq);
  void consume_cell(std::uint64_t seq);
  // A message on one queue joins the batch.  It is posted at once when nothing is under way (a lone
  // message waits for no company), else by the next poll of the session, or when it is full.
  Status join_batch(SendRequest& request, const Outgoing& message, int queue);
  Status post_batch();
  // A message cut over `lanes` queues from `first` on is posted at once.
  Status post_striped(SendRequest& request, const Outgoing& message, int first, int lanes);
  Status post_failed(const Queue& queue, std::size_t bytes, int error);
  void choose_lanes(std::size_t bytes, int& first, int& count);
  int next_queue();
  void warn_truncated(std::size_t sent, std::size_t posted);

  // Through host memory (staged_send.cc): the copies are started at once, and each poll of the
  // session posts what has been copied.
  void prepare_staging();
  void send_staged(SendRequest& request, const Outgoing& message);
  void start_copies();
  void post_staged();
  Status post_piece(const StagedSends::Piece& piece);

  std::shared_ptr<SessionCore> core_;
  const int device_;
  std::unique_ptr<RegisteredBuffer> ring_;
  CtsLayout layout_;
  std::unique_ptr<PeerLink> link_;
  int rails_ = 1;  // the larger count of both ends
  const EndPlan plan_;
  std::unique_ptr<StagedSends> staged_;  // made with the first memory to be staged
  int staged_writes_ = 0;                // writes of chunked_ requests under way

  std::uint64_t head_ = 0;       // first cell not used yet
  std::bitset<kCtsCells> used_;  // cells after head_ that were used out of order, by place
  int next_queue_ = 0;
  // Queues for messages that go whole, in turn: those of the rails near the GPU.
  std::array<std::uint8_t, kMaxQps> whole_{};
  int whole_count_ = 0;
  int next_whole_ = 0;
  SendBatch batch_;
  std::uint16_t batch_last_ = SendRequest::kNone;  // slot
  std::array<SendRequest, kSendSlots> requests_;
  std::array<std::uint16_t, kSendSlots> free_;
  int free_count_ = 0;
  bool warned_truncated_ = false;
};

}  // namespace twinpath
