// All that libnccl-net-again.so holds: see default_name.h.
