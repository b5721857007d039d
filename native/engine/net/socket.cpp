#include "engine/net/socket.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace legato {

namespace {

// What may wait in the kernel, where nothing can overtake it.
constexpr int kUnsentBytes = 128 << 10;

void set_option(const Descriptor& socket, int level, int name, int value) {
    if (setsockopt(socket.get(), level, name, &value, sizeof value) != 0)
        throw std::system_error(errno, std::generic_category(), "setsockopt");
}

}  // namespace

void prepare(const Descriptor& socket) {
    const int flags = fcntl(socket.get(), F_GETFL);
    if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0)
        throw std::system_error(errno, std::generic_category(), "fcntl");
    int domain = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0)
        throw std::system_error(errno, std::generic_category(), "getsockopt");
    if (domain != AF_INET && domain != AF_INET6) return;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
}

bool leaves_machine(const Descriptor& socket) {
    sockaddr_storage here{}, there{};
    socklen_t here_length = sizeof here, there_length = sizeof there;
    if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &here_length) != 0 ||
        getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there), &there_length) != 0)
        return false;
    if (here.ss_family == AF_INET)
        return reinterpret_cast<sockaddr_in&>(here).sin_addr.s_addr !=
               reinterpret_cast<sockaddr_in&>(there).sin_addr.s_addr;
    return here.ss_family == AF_INET6 &&
           !IN6_ARE_ADDR_EQUAL(&reinterpret_cast<sockaddr_in6&>(here).sin6_addr,
                               &reinterpret_cast<sockaddr_in6&>(there).sin6_addr);
}

}  // namespace legato
