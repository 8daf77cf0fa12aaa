// What libcuda.so.1 says to who asks which GPU the program uses: the first.
extern "C" {

int cuCtxGetDevice(int* gpu) { return *gpu = 0; }
int cuDeviceGetAttribute(int*, int, int) { return 1; }
int cuDeviceGetPCIBusId(char*, int, int) { return 1; }
int cuDeviceGetName(char*, int, int) { return 1; }
}
