#pragma once
// One rank's GPU: context, streams, events, buffers and NCCL communicators, all released in
// order by destructors.
//
// Threads: all of a rank's objects belong to the rank's thread.  Waiting polls the stream and
// NCCL's asynchronous error, never blocks in the driver: a dead peer must be noticed.
#include <atomic>
#include <memory>
#include <string>

#include "tools/coll_perf/cuda_api.h"
#include "tools/coll_perf/nccl_api.h"

namespace twinpath::coll {

struct Apis {
  const CudaApi& cuda;
  const NcclApi& nccl;
};

class Context {
 public:
  Context(const CudaApi& cuda, int gpu);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

 private:
  const CudaApi& cuda_;
  int device_ = 0;
};

class Stream {
 public:
  explicit Stream(const CudaApi& cuda);
  ~Stream() { (void)cuda_.stream_destroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CuStream get() const { return stream_; }

 private:
  const CudaApi& cuda_;
  CuStream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const CudaApi& cuda);
  ~Event() { (void)cuda_.event_destroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CuEvent get() const { return event_; }

 private:
  const CudaApi& cuda_;
  CuEvent event_ = nullptr;
};

// GPU memory from ncclMemAlloc when NCCL has it and `from_nccl`, else cuMemAlloc.
class DeviceBuffer {
 public:
  DeviceBuffer(const Apis& apis, std::size_t bytes, bool from_nccl);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  CuDevicePtr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const Apis apis_;
  std::size_t bytes_;
  bool from_nccl_;
  CuDevicePtr address_ = 0;
};

class PinnedBuffer {
 public:
  PinnedBuffer(const CudaApi& cuda, std::size_t bytes);
  ~PinnedBuffer() { (void)cuda_.host_free(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const CudaApi& cuda_;
  void* data_ = nullptr;
};

class Communicator {
 public:
  Communicator(const NcclApi& nccl, int rank, int size, const NcclUniqueId& id);
  Communicator(const NcclApi& nccl, NcclComm comm) : nccl_(nccl), comm_(comm) {}
  // Aborts what was not destroyed: after an error nothing else is sure to return.
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  NcclComm get() const { return comm_; }
  void destroy();
  void abort();

 private:
  const NcclApi& nccl_;
  NcclComm comm_ = nullptr;
};

// A buffer that NCCL may hand to the net plugin as it is (ncclCommRegister).  Without end() it goes
// with its communicator: after an error nothing else is sure to return.
class Registration {
 public:
  Registration(const NcclApi& nccl, NcclComm comm, const DeviceBuffer& buffer);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  void end();

 private:
  const NcclApi& nccl_;
  const NcclComm comm_;
  void* handle_ = nullptr;
};

enum class Waited { done, failed, timed_out };
// Until the stream is idle, NCCL reports an error (in `error`), or the time is over.
Waited wait_stream(const Apis& apis, CuStream stream, NcclComm comm, double timeout_s,
                   NcclResult& error);

// Ends the process when one step takes too long, so that a call that never returns becomes a
// message and an exit status.  One per process.
class Watchdog {
 public:
  explicit Watchdog(double timeout_s);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  // Starts the next step of `rank`; any thread.  The text must be a literal.
  void step(int rank, const char* what);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::int64_t limit_ns_;
};

}  // namespace twinpath::coll
