// fdatasync, or what the system has in its place.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

// 0, or the error's number.
static int data_sync(int descriptor) {
#ifdef F_FULLFSYNC  // fsync of macOS leaves the data in the drive's cache
    return fcntl(descriptor, F_FULLFSYNC) < 0 ? errno : 0;
#else
    return fdatasync(descriptor) < 0 ? errno : 0;
#endif
}

static double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// Whether another thread sets the flag within this time. The core is yielded meanwhile; if a yield
// takes longer than `yield_max_s`, the core is needed elsewhere: give up.
static int is_set_within(const int *flag, double seconds, double yield_max_s) {
    double now = monotonic_s(), until = now + seconds;
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {
        double before = now;
        if (now >= until) return 0;
        sched_yield();
        now = monotonic_s();
        if (now - before > yield_max_s) return 0;
    }
    return 1;
}
