// A process of its own time of day: seconds in the file CHAOS_CLOCK are added to it. The clock that
// measures how long something takes is left alone, as a jump of the wall clock leaves it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    static int file = -2;
    char text[32] = {0};
    if (file == -2) {
        const char *path = getenv("CHAOS_CLOCK");
        file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    }
    return file >= 0 && pread(file, text, sizeof(text) - 1, 0) > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, which, time);
    if (!result && which == CLOCK_REALTIME) time->tv_sec += shift();
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
