#pragma once
// Control connections of one GIN comm: a TCP socket to every other rank, made collectively, over
// which setup data is gathered.  The sockets stay open: a closed one tells of a peer that died.
//
// Wire: the listen handle of plugin/rdma/handle.h finds a rank; the connecting side (the higher
// rank) says hello with the listener's nonce and its rank, the listening side answers.  Strangers
// are dropped.  Then each collective step sends one frame to every rank: a header that names the
// step, and the bytes.  A Mesh that is destroyed says goodbye, so that a rank that has finished
// is not taken for a dead one.
//
// A step that failed leaves half-read frames behind: every later step fails at once.
//
// A rank whose socket is silent is not dead for that: the context asks over its queues.
//
// Threads: one at a time, except look, dead_peer, give_up and the texts.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/peer_watch.h"
#include "plugin/base/socket.h"
#include "plugin/base/status.h"
#include "plugin/rdma/handle.h"

namespace twinpath::gda {

class MeshListener {
 public:
  static Result<std::unique_ptr<MeshListener>> open(const Config& config, HandleBytes handle);
  TcpListener& socket() { return socket_; }
  const Nonce& nonce() const { return nonce_; }

 private:
  MeshListener(TcpListener socket, const Nonce& nonce)
      : socket_(std::move(socket)), nonce_(nonce) {}
  TcpListener socket_;
  Nonce nonce_;
};

class Mesh {
 public:
  // Collective.  Blocks until all ranks are connected or `config.connect_timeout_ms` has passed;
  // the log names ranks that are missing.
  static Result<std::unique_ptr<Mesh>> connect(
      const Config& config, MeshListener& listener,
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }

  // Collective: every rank gets everybody's bytes (each up to 1 MiB, lengths may differ), in order
  // of rank.  `what` names the step in messages ("keys of a window").
  Result<std::vector<std::vector<std::uint8_t>>> all_gather(std::span<const std::uint8_t> mine,
                                                            const char* what);
  // Collective: rank r gets to[r] of everybody, each side's own included.
  Result<std::vector<std::vector<std::uint8_t>>> all_to_all(
      const std::vector<std::vector<std::uint8_t>>& to, const char* what);

  // What the socket to a rank shows; quiet between steps, whatever it sent for the next.  Never
  // blocks; any thread.
  struct PeerState {
    PeerSign sign = PeerSign::quiet;
    std::int64_t silence_ms = 0;  // for which its host has owed an answer
    bool left = false;            // it said goodbye: nothing is expected of it any more
  };
  PeerState look(int rank) const;
  // A rank whose process has gone, or -1; not one that said goodbye.
  int dead_peer() const;
  // Every other rank finds the end of this one.  Nothing can be said afterwards.
  void give_up() const;
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  // "rank 3 (10.0.0.7:41234)"
  std::string peer_text(int rank) const;
  // Whether its process is on this host, by its handle.
  bool on_this_host(int rank) const;
  // Why it is lost, when judged so; see plugin/base/peer_watch.h.
  std::string verdict_text(int rank, Verdict verdict) const;

 private:
  friend class MeshBuilder;  // mesh_connect.cc
  struct Peer {
    TcpSocket socket;
    SocketAddress address;  // where that rank listened
    bool here = true;       // on this host
  };
  using Bytes = std::span<const std::uint8_t>;
  struct Transfer;
  Mesh(int rank, int ranks) : rank_(rank), peers_(static_cast<std::size_t>(ranks)) {}
  Result<std::vector<std::vector<std::uint8_t>>> exchange(std::span<const Bytes> to,
                                                          const char* what);
  Status move(std::vector<Transfer>& transfers, std::uint32_t tag, const char* what);
  Status receive(Transfer& transfer, std::uint32_t tag, const char* what);
  Status lost(int rank, const char* what, Status status) const;
  Status late(const std::vector<Transfer>& transfers, const char* what) const;

  const int rank_;
  std::vector<Peer> peers_;  // the own one stays closed
  std::int64_t timeout_ns_ = 0;
  std::uint32_t step_ = 0;
  bool broken_ = false;
};

}  // namespace twinpath::gda
