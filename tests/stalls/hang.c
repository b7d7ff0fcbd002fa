/* A disk that hangs: syncs and synchronous writes of a process wait while a flag is set.
 *
 * Preloaded into a process, this library reads the first byte of the file DISK_HANGS, which is
 * mapped. While the byte is not zero, fsync, fdatasync and every write to a descriptor that was
 * opened with O_DSYNC or O_SYNC wait. Reads and all other calls continue.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DOOR __attribute__((visibility("default")))

static const volatile char *hangs;

__attribute__((constructor)) static void open_flag(void) {
    const char *path = getenv("DISK_HANGS");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "hang.c: DISK_HANGS must name a file of at least one byte\n");
        _exit(127);
    }
    close(file);
    hangs = mapped;
}

static void wait_for_disk(void) {
    const struct timespec pause = {0, 1000000};
    while (*hangs)
        nanosleep(&pause, NULL);
}

static void wait_if_synchronous(int file) {
    int flags;
    if (*hangs && (flags = fcntl(file, F_GETFL)) != -1 && (flags & O_DSYNC))
        wait_for_disk();
}

DOOR int fsync(int file) {
    static int (*real)(int);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return real(file);
}

DOOR int fdatasync(int file) {
    static int (*real)(int);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return real(file);
}

DOOR ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pwrite");
    wait_if_synchronous(file);
    return real(file, bytes, count, at);
}

DOOR ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pwrite64");
    wait_if_synchronous(file);
    return real(file, bytes, count, at);
}

DOOR ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pwritev");
    wait_if_synchronous(file);
    return real(file, parts, count, at);
}
