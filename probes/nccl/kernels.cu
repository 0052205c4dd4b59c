// Test data of the NCCL probe: filled and checked on the GPU, so that checking 1 GiB on every rank costs milliseconds.
// Built into kernels.ptx, which the CUDA driver compiles for whatever GPU is there:
//   nvcc -ptx -arch=compute_75 kernels.cu, then `.version` set to 7.0: nothing newer is used, and drivers from 450 on take it.
// `probes/nccl/pattern.py` holds the same function in Python and says what the values are.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

__device__ static inline u32 mix(u32 x) {
  x ^= x >> 16; x *= 0x7feb352dU;
  x ^= x >> 15; x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

__device__ static inline u32 value(u32 seed, u32 rank, u64 index, u32 mask, u32 stride) {
  if (stride > 1 && (rank + (u32)index) % stride != 0) return 0;
  u32 h = mix((u32)index ^ mix(rank * 0x9e3779b9U + seed));
  return mix(h + (u32)(index >> 32)) & mask;
}

// Whole numbers up to 256 are exact in bfloat16: its bits are the upper half of the float's.
__device__ static inline u16 bf16(u32 v) { return (u16)(__float_as_uint((float)v) >> 16); }

__device__ static inline u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ static inline u64 step() { return (u64)gridDim.x * blockDim.x; }

extern "C" __global__ void fill_float(float* out, u64 count, u32 seed, u32 rank, u64 offset, u32 mask, u32 stride) {
  for (u64 i = first(); i < count; i += step()) out[i] = (float)value(seed, rank, offset + i, mask, stride);
}

extern "C" __global__ void fill_bf16(u16* out, u64 count, u32 seed, u32 rank, u64 offset, u32 mask, u32 stride) {
  for (u64 i = first(); i < count; i += step()) out[i] = bf16(value(seed, rank, offset + i, mask, stride));
}

// Elements of `data` that are not the sum over ranks first_rank .. first_rank + ranks - 1 are added to *wrong.
__device__ static inline u32 total(u32 seed, u32 first_rank, u32 ranks, u64 index, u32 mask, u32 stride) {
  u32 sum = 0;
  for (u32 r = 0; r < ranks; r++) sum += value(seed, first_rank + r, index, mask, stride);
  return sum;
}

extern "C" __global__ void check_float(const float* data, u64 count, u32 seed, u32 first_rank, u32 ranks, u64 offset, u32 mask, u32 stride,
                                       u64* wrong) {
  u64 bad = 0;
  for (u64 i = first(); i < count; i += step())
    if (!(data[i] == (float)total(seed, first_rank, ranks, offset + i, mask, stride))) bad++;
  if (bad) atomicAdd(wrong, bad);
}

extern "C" __global__ void check_bf16(const u16* data, u64 count, u32 seed, u32 first_rank, u32 ranks, u64 offset, u32 mask, u32 stride,
                                      u64* wrong) {
  u64 bad = 0;
  for (u64 i = first(); i < count; i += step())
    if (data[i] != bf16(total(seed, first_rank, ranks, offset + i, mask, stride))) bad++;
  if (bad) atomicAdd(wrong, bad);
}
