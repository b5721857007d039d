// What compiled programs call, through XLA's foreign-function interface.
//
// legato_average  a tensor's average over all workers; XLA goes on with what does not need it
// legato_join     its operands as they are, all at once. XLA may give the memory of a tensor that is no
// longer needed to
//                 the next one. Whoever computes that one would then wait for an average that is on its way,
//                 though it needs none: with a join at the end all averages are needed until then, and have
//                 memory of their own.
// legato_start    sends a gradient on its way: the number to finish it by; 0 must be given, as proof of a
// finish legato_finish   what was started by a number; zeros for the number 0, nothing
#ifndef LEGATO_JAX_HANDLERS_HPP
#define LEGATO_JAX_HANDLERS_HPP

#include <map>
#include <string>

namespace legato::jax {

// By the names under which JAX registers them.
std::map<std::string, void*> handlers();

}  // namespace legato::jax

#endif
