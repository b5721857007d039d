// The loops for AVX2: Intel since Haswell (2013), AMD since Excavator (2015).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/loops_headers.hpp"

#pragma GCC target("avx2,f16c")

namespace legato::avx2 {

using Floats = __m256;
using Halves = __m128i;
static Floats widen_halves(Halves halves) { return _mm256_cvtph_ps(halves); }
static Halves narrow_floats(Floats floats) { return _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT); }

#include "kernels/loops.hpp"
// Needs what is above.
#include "kernels/codec_loops.hpp"

}  // namespace legato::avx2

#endif
