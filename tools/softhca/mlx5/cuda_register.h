#pragma once
// Makes a doorbell register in ordinary memory known to CUDA, so that a GPU's kernels can write to
// it. Off unless SOFTHCA_REGISTER_UAR=1: some programs take a register that is already known for
// one that works, and others for an error (README).
namespace twinpath::softhca::mlx5 {

class CudaRegister {
 public:
  CudaRegister() = default;
  // `address`: of 8 bytes.  Says on stderr why it could not be done; the program goes on without.
  explicit CudaRegister(void* address);
  ~CudaRegister();
  CudaRegister(const CudaRegister&) = delete;
  CudaRegister& operator=(const CudaRegister&) = delete;

  bool done() const { return address_ != nullptr; }

 private:
  void* address_ = nullptr;
  int (*unregister_)(void*) = nullptr;
};

}  // namespace twinpath::softhca::mlx5
