// What a connected socket must be before a link uses it.
#pragma once

#include "engine/net/descriptor.hpp"

namespace legato {

// Non-blocking; for TCP also without delay, and with little waiting in the kernel, so that what is sent next
// is still ours to choose. Other kinds of stream socket are used as they are. Congestion control has to be
// chosen earlier, before there is a connection (transports/rendezvous/tcp.py).
// Throws std::system_error.
void prepare(const Descriptor& socket);

// Whether it is a TCP socket to another address than its own.
bool leaves_machine(const Descriptor& socket);

}  // namespace legato
