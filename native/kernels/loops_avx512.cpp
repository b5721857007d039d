// The loops for AVX-512: Intel servers since Skylake (2017), AMD since Zen 4 (2022).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/loops_headers.hpp"

// GCC's own AVX-512 header sets off this warning (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")

namespace legato::avx512 {

using Floats = __m512;
using Halves = __m256i;
static Floats widen_halves(Halves halves) { return _mm512_cvtph_ps(halves); }
static Halves narrow_floats(Floats floats) { return _mm512_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT); }

#include "kernels/loops.hpp"
// Needs what is above.
#include "kernels/codec_loops.hpp"

}  // namespace legato::avx512

#endif
