// fdatasync, or what the system has in its place.

#pragma once

#include <errno.h>
#include <fcntl.h>
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
