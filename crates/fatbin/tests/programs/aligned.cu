// Kernels whose parameters want more alignment than 16 bytes: machine code has them elsewhere than PTX.
struct alignas(32) Half { int values[8]; };
struct alignas(64) Line { int values[16]; };
struct alignas(128) Pair { int values[32]; };

extern "C" __global__ void half_line(int a, Half s, int *out) { *out = a + s.values[1]; }
extern "C" __global__ void line(int a, Line s, int *out) { *out = a + s.values[1]; }
extern "C" __global__ void pair(Pair s, int *out) { *out = s.values[1]; }
