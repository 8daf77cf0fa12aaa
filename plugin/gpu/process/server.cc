#include "plugin/gpu/process/server.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/import.h"

namespace twinpath::gpu::process {
namespace {

void set_text(Answer& answer, const char* text) {
  std::strncpy(answer.text, text, sizeof answer.text - 1);
}

}  // namespace

void Server::log(int level, const char* text) const {
  Answer line;
  line.layout = kLayout;
  line.what = Tell::log;
  line.number = level;
  set_text(line, text);
  // A line that nobody reads may be lost, but no copy waits for it.
  (void)send_message(socket_.get(), &line, sizeof line, -1, false);
}

void Server::run(Status status, const std::string& why) {
  Answer ready;
  ready.layout = kLayout;
  ready.what = Tell::ready;
  ready.status = status;
  ready.number = ::getpid();
  set_text(ready, why.c_str());
  if (!send_message(socket_.get(), &ready, sizeof ready, -1) || status != Status::ok) return;
  for (;;) {
    Question question;
    UniqueFd fd;
    if (receive_message(socket_.get(), &question, sizeof question, &fd, true) != Status::ok ||
        question.layout != kLayout)
      return;
    answer(question, std::move(fd));
  }
}

void Server::answer(const Question& question, UniqueFd fd) {
  Answer answer;
  switch (question.what) {
    case Ask::open_gpu:
      answer = open_gpu(question, std::move(fd));
      break;
    case Ask::import:
      answer = import(question, std::move(fd));
      break;
    case Ask::forget:
      allocations_.erase(question.id);
      return;  // nobody waits for it
  }
  answer.layout = kLayout;
  (void)send_message(socket_.get(), &answer, sizeof answer, -1);
}

Answer Server::open_gpu(const Question& question, UniqueFd fd) {
  Answer answer;
  answer.what = Tell::opened;
  answer.status = Status::unsupported;
  const cuda::Driver* d = cuda::driver();
  const int gpu = d != nullptr ? find_gpu(*d, question.gpu) : kGpuNotVisible;
  if (gpu == kGpuNotVisible) {
    TP_WARN("the copy process does not see a GPU that the program uses (CUDA_VISIBLE_DEVICES?)");
    return answer;
  }
  std::string why;
  auto memory = SharedMemory::map(fd.get(), kSharedBytes, Writers::both, why);
  if (!memory) {
    TP_WARN("GPU %d: the copy process got no memory for jobs: %s", gpu, why.c_str());
    return answer;
  }
  auto made = ServedGpu::open(gpu, std::move(memory).take(), near_);
  answer.status = made.status();
  answer.number = gpu;
  if (made) gpus_.push_back(std::move(made).take());
  // Copies within a GPU go through memory of another, which an earlier one may have now.
  for (const auto& served : gpus_) served->prepare();
  return answer;
}

Answer Server::import(const Question& question, UniqueFd fd) {
  Answer answer;
  answer.what = Tell::imported;
  ExportedAllocation e;
  e.kind = question.kind;
  e.fd = std::move(fd);
  e.bytes = question.bytes;
  e.gpu = question.gpu;
  std::copy(std::begin(question.ipc), std::end(question.ipc), e.ipc_handle);
  auto made = import_here(std::move(e));
  answer.status = made.status();
  if (!made) return answer;
  answer.address = (*made)->address();
  answer.number = (*made)->gpu();
  allocations_[question.id] = std::move(made).take();
  return answer;
}

}  // namespace twinpath::gpu::process
