// The loops for every 64-bit ARM.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/loops_headers.hpp"

namespace legato::neon {

using Floats = float32x4_t;
using Halves = float16x4_t;
static Floats widen_halves(Halves halves) { return vcvt_f32_f16(halves); }
static Halves narrow_floats(Floats floats) { return vcvt_f16_f32(floats); }

#include "kernels/loops.hpp"
// Needs what is above.
#include "kernels/codec_loops.hpp"

}  // namespace legato::neon
#endif
