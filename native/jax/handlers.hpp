// What compiled programs call, through XLA's foreign-function interface.
//
// legato_average  a tensor's average over all workers; XLA goes on with what does not need it
// legato_join     its operands as they are, all at once
// legato_start    sends a gradient on its way: the number to finish it by. It takes 0, as proof that the last
// one has
//                 been finished, and perhaps the last average
// legato_finish   what was started by a number; zeros for the number 0, which stands for nothing
//
// Note: memory of their own.
//
// XLA gives the memory of a value that is no longer needed to the next one, and whoever computes that one
// waits until the first is no longer needed: also for an average that is on its way, and has nothing else to
// do with it. So an average must be needed for long. Within a step a join needs all of them at its end.
// Across steps a leaf's next start needs its last average, though it does not look at it.
#ifndef LEGATO_JAX_HANDLERS_HPP
#define LEGATO_JAX_HANDLERS_HPP

#include <map>
#include <string>

namespace legato::jax {

// By the names under which JAX registers them.
std::map<std::string, void*> handlers();

}  // namespace legato::jax

#endif
