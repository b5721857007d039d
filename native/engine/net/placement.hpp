// Where an I/O thread runs.
#pragma once

namespace legato {

// Let the calling thread run before ordinary ones, where that is allowed: it works in short bursts, and the
// computation it competes with will soon wait for what it brings.
void take_precedence();

// Let the calling thread run for short slices of time: it then runs soon after it asks to, and yielding costs
// it little. False where the kernel has no such slices (Linux has from 6.12 on).
bool take_short_slices();

// Keep the calling thread, and so the memory it touches first, on the NUMA node of the network card that this
// socket uses. Does nothing on a machine with one node, or where the card's node is not known.
void stay_near_network(int socket);

}  // namespace legato
