/* The wall clock of a process, set forward or back while it runs.
 *
 * Preloaded into a process, this library adds an offset to its wall clock: the milliseconds at the
 * begin of the file CLOCK_OFFSET, as a signed 64-bit number. The file is mapped, so a write to it
 * steps the clock at once. Other clocks, and the kernel's timestamps of files, stay as they are.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DOOR __attribute__((visibility("default")))
#define NS_PER_S 1000000000LL

static const volatile int64_t *offset_ms;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "offset.c: CLOCK_OFFSET must name a file of 8 bytes\n");
        _exit(127);
    }
    close(file);
    offset_ms = mapped;
}

DOOR int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t ns = now->tv_sec * NS_PER_S + now->tv_nsec + *offset_ms * 1000000;
    now->tv_sec = ns / NS_PER_S;
    now->tv_nsec = ns % NS_PER_S;
    return 0;
}

DOOR int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec at;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    if (!failed) {
        now->tv_sec = at.tv_sec;
        now->tv_usec = at.tv_nsec / 1000;
    }
    return failed;
}

DOOR time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now != NULL)
        *now = at.tv_sec;
    return at.tv_sec;
}
