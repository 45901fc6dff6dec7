// What a process next to a broker costs it, without any link between the two: memory and a core
// that are used as a slave uses them.
//
//     neighbour FILE PIECE_KB MICROSECONDS_PER_SECOND PIECES_PER_SECOND
//
// Until it is killed it writes that many pieces a second to FILE, reads each back, and computes
// until it has used its share of a core.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 30 };

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 5) {
        fputs("neighbour FILE PIECE_KB MICROSECONDS_PER_SECOND PIECES_PER_SECOND\n", stderr);
        return 1;
    }
    size_t piece = (size_t)atol(words[2]) << 10;
    double share = atof(words[3]) / 1e6, period = 1 / atof(words[4]);
    char *bytes = malloc(piece), *other = malloc(piece);
    int file = open(words[1], O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (!bytes || !other || file < 0) {
        perror(words[1]);
        return 1;
    }
    memset(bytes, 7, piece);
    double next = now(CLOCK_MONOTONIC);
    for (off_t at = 0;; at = at + 2 * piece < FILE_BYTES ? at + piece : 0) {
        double used = now(CLOCK_PROCESS_CPUTIME_ID);
        memcpy(other, bytes, piece);
        if (pwrite(file, other, piece, at) < 0 || pread(file, bytes, piece, at) < 0) {
            perror(words[1]);
            return 1;
        }
        while (now(CLOCK_PROCESS_CPUTIME_ID) - used < share * period)
            for (size_t i = 0; i < 4096; i += 64)
                bytes[i]++;
        next += period;
        double rest = next - now(CLOCK_MONOTONIC);
        if (rest > 0)
            usleep(rest * 1e6);
        else
            next = now(CLOCK_MONOTONIC);
    }
}
