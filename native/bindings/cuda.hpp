// What is asked of an accelerator's driver. It is looked for when it is first needed:
// legato is built without CUDA, and runs where there is none.
#pragma once

#include <cstdint>

namespace legato {

// A stream goes no further until the word in pinned memory has reached the mark, as marks go round: once it
// has grown by less than 2^31. Throws std::runtime_error where there is no driver, or it refuses.
void cuda_wait_for_word(uintptr_t stream, uintptr_t word, uint32_t mark);

// A stream sets the word in pinned memory when it has come so far, and what it copied to the host before is
// there. The same errors.
void cuda_write_word(uintptr_t stream, uintptr_t word, uint32_t mark);

// From now on a thread that waits for this thread's device sleeps, instead of spinning as the driver's
// default has it where there are cores enough; somebody's own choice stays. The same errors.
void cuda_sleep_while_waiting();

}  // namespace legato
