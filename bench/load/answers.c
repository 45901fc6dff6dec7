// The ceiling of pulls on this machine: one thread that does nothing but what the kernel needs.
//
//   answers PORT BYTES MESSAGES
//
// Reads requests and answers each with a head and so many bytes of a file's map, by one call of the
// system, as a broker does that needs no time of its own. BYTES are all of a pull's records,
// MESSAGES how many they are: each looks like a record to the load client (length and magic come first).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROOM = 1 << 16, FILE_BYTES = 128 << 20, PARTS = 4 };

static void put_int(char *at, uint32_t number) {
    number = htonl(number);
    memcpy(at, &number, 4);
}

static int listener(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64)) {
        perror("listen");
        exit(2);
    }
    return fd;
}

// The number behind a name, and where it stands; the names are those of the load client's JSON.
static long number_of(const char *header, const char *name) {
    const char *found = strstr(header, name);
    return found ? atol(found + strlen(name)) : 0;
}

static void write_all(int fd, struct iovec *pieces, int count) {
    while (count) {
        ssize_t sent = writev(fd, pieces, count);
        if (sent < 0) return;  // the client has gone: its end is read next
        while (count && sent >= (ssize_t)pieces->iov_len) sent -= pieces->iov_len, pieces++, count--;
        if (count) pieces->iov_base = (char *)pieces->iov_base + sent, pieces->iov_len -= sent;
    }
}

// One whole request at `data`; how many bytes it has, 0: not whole yet.
static size_t answer(int fd, char *data, size_t have, char *map, size_t bytes, long messages) {
    uint32_t length;
    if (have < 8) return 0;
    memcpy(&length, data, 4);
    length = ntohl(length) + 4;
    if (have < length) return 0;
    char kept = data[length];
    data[length] = 0;
    long opaque = number_of(data + 8, "\"opaque\":"), offset = number_of(data + 8, "\"queueOffset\":\"");
    data[length] = kept;
    char head[512];
    int size = sprintf(head + 8,
                       "{\"code\":0,\"extFields\":{\"maxOffset\":\"1000000000\",\"minOffset\":\"0\","
                       "\"nextBeginOffset\":\"%ld\",\"suggestWhichBrokerId\":\"0\"},\"flag\":1,"
                       "\"language\":\"OTHER\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\","
                       "\"version\":435}", offset + messages, opaque);
    put_int(head, 4 + size + bytes);
    put_int(head + 4, size);
    // Each connection reads a part of its own, as of a queue: what one has read is in no cache for another.
    size_t part = FILE_BYTES / PARTS / bytes * bytes;
    size_t start = offset / messages * bytes % part + part * (fd % PARTS);
    struct iovec pieces[] = {{head, size + 8}, {map + start, bytes}};
    write_all(fd, pieces, 2);
    return length;
}

int main(int count, char **words) {
    if (count != 4) return fprintf(stderr, "answers PORT BYTES MESSAGES\n"), 2;
    size_t bytes = atol(words[2]), each = bytes / atol(words[3]);
    bytes = each * atol(words[3]);
    if (!bytes || bytes > FILE_BYTES / PARTS) return fprintf(stderr, "1 to %d BYTES\n", FILE_BYTES / PARTS), 2;
    int file = memfd_create("records", 0), poll = epoll_create1(0), door = listener(atoi(words[1]));
    if (file < 0 || ftruncate(file, FILE_BYTES)) return perror("file"), 2;
    char *map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return perror("map"), 2;
    memset(map, 'x', FILE_BYTES);
    for (size_t at = 0; at + each <= FILE_BYTES; at += each) put_int(map + at, each), put_int(map + at + 4, 0xdaa320a7);
    signal(SIGPIPE, SIG_IGN);  // a client may go in the middle of an answer
    static char data[1024][ROOM + 1];
    static size_t have[1024];
    struct epoll_event event = {.events = EPOLLIN, .data.fd = door}, events[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, door, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, 64, -1);
        for (int k = 0; k < ready; k++) {
            int fd = events[k].data.fd, on = 1;
            if (fd == door) {
                event.data.fd = fd = accept(door, NULL, NULL);
                if (fd < 0 || fd >= 1024) return 2;
                have[fd] = 0;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            ssize_t got = read(fd, data[fd] + have[fd], ROOM - have[fd]);
            if (got <= 0) {
                close(fd);
                continue;
            }
            have[fd] += got;
            size_t taken = 0, one;
            while ((one = answer(fd, data[fd] + taken, have[fd] - taken, map, bytes, atol(words[3]))))
                taken += one;
            memmove(data[fd], data[fd] + taken, have[fd] -= taken);
        }
    }
}
