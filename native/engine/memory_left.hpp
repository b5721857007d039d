// What this process may still take before the kernel ends it.
#pragma once

#include <cstddef>

namespace legato {

// In bytes: of the machine, or of the process's cgroup, whichever is less. What cannot be read is no limit.
size_t memory_left();

}  // namespace legato
