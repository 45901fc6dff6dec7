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

// Whether a flag that another thread sets is set within this time. Others who want the core have it
// meanwhile; one who keeps it for longer than `lent_s` shall have it.
static int is_set_within(const int *flag, double seconds, double lent_s) {
    double now = monotonic_s(), until = now + seconds;
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {
        double before = now;
        if (now >= until) return 0;
        sched_yield();
        now = monotonic_s();
        if (now - before > lent_s) return 0;
    }
    return 1;
}
