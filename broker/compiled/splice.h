// Hands memory to a socket by reference: the pages go through a pipe, and are not copied.

#pragma once

#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIPE_SIZE (1 << 20)  // as a rule the most that an unprivileged user may ask for

#ifdef SPLICE_F_NONBLOCK

// How many pages a new pipe holds; 0: it could not be made.
static int open_pipe(int ends[2]) {
    int size;
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC)) return 0;
    size = fcntl(ends[1], F_SETPIPE_SZ, PIPE_SIZE);
    if (size < 0) size = fcntl(ends[1], F_GETPIPE_SZ);
    size = size < 0 ? 0 : (int)(size / sysconf(_SC_PAGESIZE));
    if (size < 1) {
        close(ends[0]);
        close(ends[1]);
    }
    return size;
}

// Sends `head`, which is copied, and then the `size` bytes of the pieces. How many bytes the socket
// took; -1: nothing was sent, as these cannot be passed. Unless it took all, bytes of the pieces
// may be left in the pipe. `more`: others will follow.
static ssize_t send_pages(int socket, const int ends[2], const void *head, size_t head_size,
                          const struct iovec *pieces, size_t count, size_t size, int more) {
    size_t left = size;
    ssize_t took = vmsplice(ends[1], pieces, count, SPLICE_F_NONBLOCK);
    if (took < 0 || (size_t)took != size) return -1;
    if (head_size) {
        took = send(socket, head, head_size, MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL);
        if (took < 0 || (size_t)took != head_size) return took < 0 ? 0 : took;
    }
    while (left) {
        took = splice(ends[0], NULL, socket, NULL, left, SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0));
        if (took <= 0) break;
        left -= (size_t)took;
    }
    return (ssize_t)(head_size + size - left);
}

#else

static int open_pipe(int ends[2]) {
    (void)ends;
    return 0;
}

static ssize_t send_pages(int socket, const int ends[2], const void *head, size_t head_size,
                          const struct iovec *pieces, size_t count, size_t size, int more) {
    (void)socket, (void)ends, (void)head, (void)head_size, (void)pieces, (void)count, (void)size, (void)more;
    return -1;
}

#endif
