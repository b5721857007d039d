// Where an I/O thread runs.
#pragma once

namespace legato {

// Let the calling thread run before ordinary ones, where that is allowed: it works in short bursts, and the
// computation it competes with will soon wait for what it brings. True when the kernel gives it short slices
// of time (Linux 6.12 and later do, to everybody): it then runs soon after it asks to, and yielding costs it
// little.
bool take_precedence();

// Keep the calling thread, and so the memory it touches first, on the NUMA node of the network card that this
// socket uses. Does nothing on a machine with one node, or where the card's node is not known.
void stay_near_network(int socket);

}  // namespace legato
