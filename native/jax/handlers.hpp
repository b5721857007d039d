// What compiled programs call, through XLA's foreign-function interface.
//
// legato_start   sends a gradient on its way: the number to finish it by. It takes 0, as proof that the last
// one has been
//                finished, and perhaps the last average
// legato_finish  what was started by a number; zeros for the number 0, which stands for nothing. XLA goes on
// with what
//                does not need it
// legato_join    its operands as they are, all at once
//
// Note: what XLA waits for.
//
// XLA gives the memory of a value that is no longer needed to a later one, and whoever computes that one
// waits until the first is no longer needed: also for an average that is on its way, and has nothing else to
// do with it. And a small program runs one operation after the other, so that what comes after a finish waits
// for it. Therefore:
// - Within a step no leaf is finished before all are started, and the backward pass is over: numbers pass
// through a join.
// - Across steps an average must be needed for long, and so keep its memory: the leaf's next start takes it,
// though it
//   does not look at it.
#ifndef LEGATO_JAX_HANDLERS_HPP
#define LEGATO_JAX_HANDLERS_HPP

#include <map>
#include <string>

namespace legato::jax {

// By the names under which JAX registers them.
std::map<std::string, void*> handlers();

}  // namespace legato::jax

#endif
