// Does fdatasync succeed for data that is gone after the next mount?
//
//   sync_at_shutdown FOLDER allocated|written MS   write and sync records; after MS ms shut the file
//                                                  system down without a flush of its log
//   sync_at_shutdown FOLDER check                  after umount and mount: how many records are there
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHUTDOWN _IOR('X', 125, uint32_t)
enum { RECORD = 1024, RECORDS = 16384, SIZE = RECORD * RECORDS };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void fail(const char *what) {
    perror(what);
    exit(2);
}

int main(int count, char **words) {
    static uint64_t record[RECORD / 8];
    static char zeros[1 << 20];
    char path[4096];
    if (count < 3) return 2;
    snprintf(path, sizeof path, "%s/log", words[1]);
    int file = open(path, O_RDWR | O_CREAT, 0644), folder = open(words[1], O_RDONLY | O_DIRECTORY);
    if (file < 0 || folder < 0) fail(path);
    if (!strcmp(words[2], "check")) {
        uint64_t n = 0;
        while (n < RECORDS && pread(file, record, RECORD, n * RECORD) == RECORD &&
               record[0] == n + 1 && record[RECORD / 8 - 1] == n + 1)
            n++;
        printf("%lu\n", n);
        return 0;
    }
    if (count < 4 || posix_fallocate(file, 0, SIZE)) return 2;
    for (off_t at = 0; !strcmp(words[2], "written") && at < SIZE; at += sizeof zeros)
        if (pwrite(file, zeros, sizeof zeros, at) != sizeof zeros) fail("zeros");
    if (fsync(file) || fsync(folder)) fail("fsync");
    double *when = mmap(0, RECORDS * sizeof *when, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t writer = fork();
    for (uint64_t n = 0; !writer && n < RECORDS; n++) {
        record[0] = record[RECORD / 8 - 1] = n + 1;
        if (pwrite(file, record, RECORD, n * RECORD) != RECORD || fdatasync(file)) _exit(0);
        when[n] = now_ms();
    }
    if (!writer) _exit(0);
    usleep(atof(words[3]) * 1000);
    uint32_t no_log_flush = 2;
    double before = now_ms();
    if (ioctl(folder, SHUTDOWN, &no_log_flush)) fail("shutdown");
    usleep(50000);
    kill(writer, SIGKILL);
    waitpid(writer, 0, 0);
    int early = 0, synced = 0;
    for (; synced < RECORDS && when[synced]; synced++) early += when[synced] <= before;
    printf("%d %d\n", early, synced);  // syncs that returned 0: before the shutdown began, and all
    return 0;
}
