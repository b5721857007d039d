// What this process may still take before the kernel ends it.
#pragma once

#include <cstddef>

namespace legato {

// Whether less than so much is left of the machine's memory, or of the process's cgroup's, to one who holds
// so much of it. What cannot be read is no limit, and what others hold is not the holder's fault.
bool is_memory_short(size_t wanted_bytes, size_t held_bytes);

}  // namespace legato
