// What libnccl-net.so of this folder holds: see plugin/nccl/default_name.h.
