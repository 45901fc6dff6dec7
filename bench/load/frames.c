// The least that a master pays to send its log: frames of a file over loopback, to a process that
// reads them and acknowledges each, as a slave does. Neither does anything else with them.
//
//     frames SIZE_KB TOTAL_MB sendfile|write MB_PER_SECOND     -> CPU seconds per GiB, both ends

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 36, ACK = 12, LOG = 64 << 20 };

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void read_all(int from, char *to, size_t size, size_t most) {
    while (size) {
        ssize_t got = read(from, to, size < most ? size : most);
        need(got > 0, "read");
        size -= got;
    }
}

static void follow(struct sockaddr_in *at, size_t frame, size_t total) {
    static char buffer[1 << 20];
    int link = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    need(connect(link, (void *)at, sizeof *at) == 0, "connect");
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (size_t got = 0; got < total; got += frame) {
        read_all(link, buffer, HEAD, HEAD);
        read_all(link, buffer, frame, sizeof buffer);
        need(write(link, buffer, ACK) == ACK, "write");
    }
    printf("%.3f ", now(CLOCK_PROCESS_CPUTIME_ID) / (total / 1073741824.0));
    fflush(stdout);
    _exit(0);
}

static void send_frame(int link, int file, char *log, off_t at, size_t size, int copies) {
    char head[HEAD] = {0};
    need(send(link, head, HEAD, MSG_MORE) == HEAD, "send");
    for (off_t end = at + size; at < end;) {
        if (copies) {
            ssize_t sent = write(link, log + at, end - at);
            need(sent > 0, "write");
            at += sent;
        } else {
            need(sendfile(link, file, &at, end - at) > 0, "sendfile");
        }
    }
}

int main(int count, char **words) {
    need(count == 5, "frames SIZE_KB TOTAL_MB sendfile|write MB_PER_SECOND");
    size_t frame = (size_t)atol(words[1]) << 10, total = (size_t)atol(words[2]) << 20;
    int copies = strcmp(words[3], "write") == 0, one = 1;
    double pace = atof(words[4]) * 1e6, used = 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(door, (void *)&at, length) == 0 && listen(door, 1) == 0, "listen");
    getsockname(door, (void *)&at, &length);
    if (fork() == 0)
        follow(&at, frame, total);
    int link = accept(door, NULL, NULL);
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char name[] = "frames-XXXXXX", ack[ACK];
    int file = mkstemp(name);
    need(file >= 0 && ftruncate(file, LOG) == 0, name);
    unlink(name);
    char *log = mmap(NULL, LOG, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    need(log != MAP_FAILED, "mmap");
    memset(log, 1, LOG);
    double began = now(CLOCK_MONOTONIC);
    for (size_t sent = 0; sent < total; sent += frame) {
        size_t place = sent % (LOG - frame);
        memset(log + place, (int)sent, frame);  // as the put has just done; not counted
        double before = now(CLOCK_PROCESS_CPUTIME_ID);
        send_frame(link, file, log, place, frame, copies);
        read_all(link, ack, ACK, ACK);
        used += now(CLOCK_PROCESS_CPUTIME_ID) - before;
        double rest = began + (sent + frame) / pace - now(CLOCK_MONOTONIC);
        if (rest > 0)
            usleep(rest * 1e6);
    }
    wait(NULL);
    printf("%.3f\n", used / (total / 1073741824.0));
    return 0;
}
