// The loops one item at a time: for machines without wide registers, and the reference that the others are
// tested against.
#include "kernels/loops_headers.hpp"

#pragma GCC optimize("no-tree-vectorize")

namespace legato::scalar {

using Floats = float;
using Halves = Half;
static Floats widen_halves(Halves halves) { return widen(halves); }
static Halves narrow_floats(Floats floats) { return narrow<Half>(floats); }

#include "kernels/loops.hpp"
// Needs what is above.
#include "kernels/codec_loops.hpp"

}  // namespace legato::scalar
