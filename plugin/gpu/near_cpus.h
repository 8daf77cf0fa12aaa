#pragma once
#include <string>

namespace twinpath::gpu {

// The processors of the NUMA node that a GPU hangs off, as the kernel writes them
// (/sys/bus/pci/devices/ADDRESS/local_cpulist).  Empty: unknown, or no GPU.
//
// Threads: any; reads a file.
std::string near_cpus(int gpu);

}  // namespace twinpath::gpu
