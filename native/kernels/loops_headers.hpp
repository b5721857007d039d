// What loops.hpp needs. A set includes it before it switches its instructions on: an inline function of a
// header that was compiled for them could become the one copy that the linker keeps, and run on machines that
// lack them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/chance.hpp"
#include "kernels/half.hpp"
#include "kernels/instruction_set.hpp"
