/* Records what a process does to the files below one directory, in order, to simulate a power loss.
 *
 * Preloaded into a process, this library appends a record to a journal for every write, length,
 * name and sync of the files below POWERLOSS_ROOT. All calls are passed to the kernel; only the
 * page cache has what was not synced, and a kill does not change that. tests/powerloss/disk.py
 * reads the journal and computes from it what a disk may hold after a power loss.
 *
 *   POWERLOSS_ROOT      the directory, without symbolic links
 *   POWERLOSS_JOURNAL   the file of records, outside of the directory
 *   POWERLOSS_MAPPED    the one name that may be mapped shared and writable; such writes are not seen
 *   POWERLOSS_LIES      words of "fsync", "dsync", "directory": syncs of this kind do nothing and
 *                       report success
 *
 * A write is recorded before it is made, so that a write in flight is in the journal. A sync is
 * recorded after it has returned, with the length that the journal had when it began: the sync
 * covers that part. A call that cannot be followed (a writable mapping, a rename between
 * directories, stdio, ...) is recorded as such, and the reader fails. Calls are raw system calls,
 * so nothing depends on the order of loading.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define DESCRIPTORS 65536
#define JOURNAL_DESCRIPTOR_MIN 900
#define DOOR __attribute__((visibility("default")))

enum kind { WRITE = 1, RESULT, SYNC, SYNC_RANGE, LENGTH, MADE, GONE, RENAMED, NOT_FOLLOWED };

struct record { /* Followed by `size` bytes. tests/powerloss/journal.py has the same layout. */
    uint32_t kind, size;
    uint64_t inode, a, b;
};

struct descriptor { /* What a file descriptor is, if it is below the root. */
    uint8_t followed, directory, mapped;
    uint64_t inode;
    dev_t device;
};

static struct descriptor descriptors[DESCRIPTORS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static const char *mapped_name = "";
static int journal = -1;
static pid_t owner;
static int lies_fsync, lies_dsync, lies_directory;

/* --- journal --------------------------------------------------------------- */

static void stop(const char *why) {
    fprintf(stderr, "power loss shim: %s: %s\n", why, strerror(errno));
    abort();
}

/* Appends with one system call, so that records of several threads and processes stay whole. */
static void append(enum kind kind, uint64_t inode, uint64_t a, uint64_t b, const struct iovec *parts,
                   int count) {
    struct iovec all[IOV_MAX];
    struct record record = {kind, 0, inode, a, b};
    if (count > IOV_MAX - 1) {
        errno = EINVAL;
        stop("more parts than a record takes");
    }
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        all[i + 1] = parts[i];
        size += parts[i].iov_len;
    }
    record.size = (uint32_t)size;
    all[0] = (struct iovec){&record, sizeof record};
    if (size > UINT32_MAX ||
        syscall(SYS_writev, journal, all, count + 1) != (ssize_t)(sizeof record + size))
        stop("the journal took less than a record");
}

static void append_text(enum kind kind, uint64_t inode, uint64_t a, uint64_t b, const char *text,
                        size_t length) {
    struct iovec part = {(void *)text, length};
    append(kind, inode, a, b, &part, 1);
}

static void not_followed(const char *what) {
    append_text(NOT_FOLLOWED, 0, 0, 0, what, strlen(what));
}

/* --- what is below the root -------------------------------------------------- */

static int below_root(const char *path) {
    return strncmp(path, root, root_length) == 0 &&
           (path[root_length] == 0 || path[root_length] == '/');
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return -1;
    path[length] = 0;
    return 0;
}

/* A child after vfork shares this memory, but not its descriptors: its calls are not followed. */
static int own_memory(void) { return owner == getpid(); }

static void forget(int fd) {
    if (0 <= fd && fd < DESCRIPTORS && descriptors[fd].followed && own_memory())
        descriptors[fd].followed = 0;
}

static void meet(int fd) {
    if (journal < 0 || fd < 0 || !own_memory()) return;
    int saved = errno;
    char path[PATH_MAX];
    struct stat st;
    int followed = path_of(fd, path) == 0 && below_root(path) && fstat(fd, &st) == 0;
    if (fd >= DESCRIPTORS) {
        if (followed) not_followed("a descriptor number beyond the table");
    } else if (followed) {
        const char *slash = strrchr(path, '/');
        descriptors[fd] =
            (struct descriptor){1, S_ISDIR(st.st_mode), strcmp(slash + 1, mapped_name) == 0,
                                st.st_ino, st.st_dev};
    } else {
        descriptors[fd].followed = 0;
    }
    errno = saved;
}

/* Asks the kernel too: a descriptor may have been closed unseen and opened again. */
static int followed(int fd, struct descriptor *found) {
    struct stat st;
    if (journal < 0 || fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].followed) return 0;
    *found = descriptors[fd];
    if (fstat(fd, &st) == 0 && st.st_ino == found->inode && st.st_dev == found->device) return 1;
    forget(fd);
    return 0;
}

struct place { /* A name in a directory. */
    int followed;
    uint64_t directory;
    const char *name;
    size_t length;
};

static struct place locate(int dirfd, const char *path) {
    struct place place = {0, 0, "", 0};
    char parent[PATH_MAX] = ".", real[PATH_MAX];
    if (journal < 0 || !path || strlen(path) >= PATH_MAX) return place;
    int saved = errno;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    if (start > 0) {
        memcpy(parent, path, start);
        parent[start] = 0;
    }
    int fd = (int)syscall(SYS_openat, dirfd, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    struct stat st;
    if (fd >= 0) {
        if (path_of(fd, real) == 0 && below_root(real) && fstat(fd, &st) == 0)
            place = (struct place){1, st.st_ino, path + start, end - start};
        syscall(SYS_close, fd);
    }
    errno = saved;
    return place;
}

static void made(struct place place, uint64_t inode, int directory) {
    append_text(MADE, place.directory, inode, (uint64_t)directory, place.name, place.length);
}

/* --- start --------------------------------------------------------------------- */

static void take_lock(void) { pthread_mutex_lock(&lock); }
static void give_lock(void) { pthread_mutex_unlock(&lock); }
static void after_fork(void) {
    owner = getpid();
    give_lock();
}

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("POWERLOSS_ROOT"), *file = getenv("POWERLOSS_JOURNAL");
    if (!wanted || !file) return;
    if (strlen(wanted) >= sizeof root) {
        errno = ENAMETOOLONG;
        stop("POWERLOSS_ROOT");
    }
    strcpy(root, wanted);
    root_length = strlen(root);
    if (getenv("POWERLOSS_MAPPED")) mapped_name = getenv("POWERLOSS_MAPPED");
    const char *lies = getenv("POWERLOSS_LIES") ? getenv("POWERLOSS_LIES") : "";
    lies_fsync = strstr(lies, "fsync") != NULL;
    lies_dsync = strstr(lies, "dsync") != NULL;
    lies_directory = strstr(lies, "directory") != NULL;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) stop("POWERLOSS_JOURNAL");
    journal = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, JOURNAL_DESCRIPTOR_MIN);
    if (journal < 0) stop("POWERLOSS_JOURNAL");
    syscall(SYS_close, fd);
    owner = getpid();
    pthread_atfork(take_lock, give_lock, after_fork);
}

/* --- open and close -------------------------------------------------------------- */

static int open_file(int dirfd, const char *path, int flags, mode_t mode) {
    struct place place = {0, 0, "", 0};
    if (flags & (O_CREAT | O_TRUNC)) place = locate(dirfd, path);
    if (!place.followed) {
        int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
        meet(fd);
        if ((flags & O_TMPFILE) == O_TMPFILE && fd >= 0 && fd < DESCRIPTORS &&
            descriptors[fd].followed)
            not_followed("a file without a name (O_TMPFILE)");
        return fd;
    }
    struct stat st;
    take_lock();
    int there = fstatat(dirfd, path, &st, 0) == 0;
    int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
    int saved = errno;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        if (!there)
            made(place, st.st_ino, 0);
        else if ((flags & O_TRUNC) && S_ISREG(st.st_mode))
            append(LENGTH, st.st_ino, 0, 0, NULL, 0);
        meet(fd);
    }
    give_lock();
    errno = saved;
    return fd;
}

#define MODE_OF(flags)                                                                   \
    mode_t mode = 0;                                                                     \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) {                     \
        va_list rest;                                                                    \
        va_start(rest, flags);                                                           \
        mode = va_arg(rest, mode_t);                                                     \
        va_end(rest);                                                                    \
    }

DOOR int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}
DOOR int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}
DOOR int openat(int dirfd, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(dirfd, path, flags, mode);
}
DOOR int openat64(int dirfd, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(dirfd, path, flags, mode);
}
DOOR int __open_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
DOOR int __open64_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
DOOR int __openat_2(int dirfd, const char *path, int flags) {
    return open_file(dirfd, path, flags, 0);
}
DOOR int __openat64_2(int dirfd, const char *path, int flags) {
    return open_file(dirfd, path, flags, 0);
}
DOOR int creat(const char *path, mode_t mode) {
    return open_file(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}
DOOR int creat64(const char *path, mode_t mode) { return creat(path, mode); }

static FILE *open_stream(const char *door, const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) =
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, door);
    FILE *stream = real(path, mode);
    if (stream && strpbrk(mode, "wa+") && locate(AT_FDCWD, path).followed)
        not_followed("a stream that writes (fopen)");
    return stream;
}
DOOR FILE *fopen(const char *path, const char *mode) { return open_stream("fopen", path, mode); }
DOOR FILE *fopen64(const char *path, const char *mode) { return open_stream("fopen64", path, mode); }

DOOR int close(int fd) {
    forget(fd);
    return (int)syscall(SYS_close, fd);
}
DOOR int close_range(unsigned first, unsigned last, int flags) {
    for (unsigned fd = first; fd <= last && fd < DESCRIPTORS; fd++) forget((int)fd);
    return (int)syscall(SYS_close_range, first, last, flags);
}
DOOR int dup(int fd) {
    int copy = (int)syscall(SYS_dup, fd);
    meet(copy);
    return copy;
}
DOOR int dup3(int fd, int to, int flags) {
    int copy = (int)syscall(SYS_dup3, fd, to, flags);
    meet(copy);
    return copy;
}
DOOR int dup2(int fd, int to) {
    if (fd == to) return fcntl(fd, F_GETFD) < 0 ? -1 : fd;
    return dup3(fd, to, 0);
}
static int control(int fd, int command, long argument) {
    int result = (int)syscall(SYS_fcntl, fd, command, argument);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) meet(result);
    return result;
}
#define ARGUMENT_OF(command)                                                             \
    va_list rest;                                                                        \
    va_start(rest, command);                                                             \
    long argument = va_arg(rest, long);                                                  \
    va_end(rest);
DOOR int fcntl(int fd, int command, ...) {
    ARGUMENT_OF(command)
    return control(fd, command, argument);
}
DOOR int fcntl64(int fd, int command, ...) {
    ARGUMENT_OF(command)
    return control(fd, command, argument);
}

/* --- bytes -------------------------------------------------------------------------- */

#define AT_POSITION (-1)

static ssize_t kernel_write(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    if (flags) return syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
    if (offset == AT_POSITION) return syscall(SYS_writev, fd, parts, count);
    return syscall(SYS_pwritev, fd, parts, count, offset, 0);
}

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    struct descriptor found;
    if (!followed(fd, &found)) return kernel_write(fd, parts, count, offset, flags);
    take_lock();
    int status = (int)syscall(SYS_fcntl, fd, F_GETFL);
    off_t start = offset;
    struct stat st;
    if (flags & ~(RWF_DSYNC | RWF_SYNC | RWF_HIPRI)) not_followed("flags of pwritev2");
    if (status & O_APPEND)
        start = fstat(fd, &st) == 0 ? st.st_size : 0;
    else if (offset == AT_POSITION)
        start = syscall(SYS_lseek, fd, 0, SEEK_CUR);
    ssize_t wanted = 0;
    for (int i = 0; i < count; i++) wanted += (ssize_t)parts[i].iov_len;
    append(WRITE, found.inode, (uint64_t)start, 0, parts, count);
    ssize_t written = kernel_write(fd, parts, count, offset, flags);
    int saved = errno;
    if (written != wanted)
        append(RESULT, found.inode, written < 0 ? 0 : (uint64_t)written, 0, NULL, 0);
    int synced = (status & (O_DSYNC | O_SYNC)) || (flags & (RWF_DSYNC | RWF_SYNC));
    if (written > 0 && synced && !lies_dsync)
        append(SYNC_RANGE, found.inode, (uint64_t)start, (uint64_t)written, NULL, 0);
    give_lock();
    errno = saved;
    return written;
}

DOOR ssize_t write(int fd, const void *bytes, size_t size) {
    struct iovec part = {(void *)bytes, size};
    if (fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].followed)
        return syscall(SYS_write, fd, bytes, size);
    return write_parts(fd, &part, 1, AT_POSITION, 0);
}
DOOR ssize_t writev(int fd, const struct iovec *parts, int count) {
    return write_parts(fd, parts, count, AT_POSITION, 0);
}
DOOR ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    struct iovec part = {(void *)bytes, size};
    if (offset < 0) {
        errno = EINVAL;
        return -1;
    }
    return write_parts(fd, &part, 1, offset, 0);
}
DOOR ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) {
    return pwrite(fd, bytes, size, offset);
}
DOOR ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (offset < 0) {
        errno = EINVAL;
        return -1;
    }
    return write_parts(fd, parts, count, offset, 0);
}
DOOR ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev(fd, parts, count, offset);
}
DOOR ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return write_parts(fd, parts, count, offset, flags);
}
DOOR ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return write_parts(fd, parts, count, offset, flags);
}

/* Only calls that may move bytes into a followed file unseen. */
static void refuse(int fd, const char *what) {
    struct descriptor found;
    if (followed(fd, &found)) not_followed(what);
}
DOOR ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    refuse(out, "sendfile");
    return syscall(SYS_sendfile, out, in, offset, count);
}
DOOR ssize_t sendfile64(int out, int in, off_t *offset, size_t count) {
    return sendfile(out, in, offset, count);
}
DOOR ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t count, unsigned flags) {
    refuse(out, "copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, count, flags);
}
DOOR ssize_t splice(int in, off_t *from, int out, off_t *to, size_t count, unsigned flags) {
    refuse(out, "splice");
    return syscall(SYS_splice, in, from, out, to, count, flags);
}
DOOR void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    struct descriptor found;
    int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (shared && (protection & PROT_WRITE) && followed(fd, &found) && !found.mapped)
        not_followed("a mapping that is shared and writable");
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
DOOR void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(address, size, protection, flags, fd, offset);
}

/* --- lengths ------------------------------------------------------------------------- */

DOOR int ftruncate(int fd, off_t length) {
    struct descriptor found;
    if (!followed(fd, &found)) return (int)syscall(SYS_ftruncate, fd, length);
    take_lock();
    int result = (int)syscall(SYS_ftruncate, fd, length);
    int saved = errno;
    if (result == 0) append(LENGTH, found.inode, (uint64_t)length, 0, NULL, 0);
    give_lock();
    errno = saved;
    return result;
}
DOOR int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

DOOR int truncate(const char *path, off_t length) {
    struct stat st;
    int below = locate(AT_FDCWD, path).followed;
    take_lock();
    int result = (int)syscall(SYS_truncate, path, length);
    int saved = errno;
    if (result == 0 && below && stat(path, &st) == 0)
        append(LENGTH, st.st_ino, (uint64_t)length, 0, NULL, 0);
    give_lock();
    errno = saved;
    return result;
}
DOOR int truncate64(const char *path, off_t length) { return truncate(path, length); }

DOOR int fallocate(int fd, int mode, off_t offset, off_t size) {
    struct descriptor found;
    struct stat before;
    if (!followed(fd, &found)) return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    take_lock();
    int known = fstat(fd, &before) == 0;
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    int saved = errno;
    if (result == 0 && (mode & ~FALLOC_FL_KEEP_SIZE))
        not_followed("fallocate that changes bytes");
    else if (result == 0 && mode == 0 && known && before.st_size < offset + size)
        append(LENGTH, found.inode, (uint64_t)(offset + size), 0, NULL, 0);
    give_lock();
    errno = saved;
    return result;
}
DOOR int fallocate64(int fd, int mode, off_t offset, off_t size) {
    return fallocate(fd, mode, offset, size);
}
DOOR int posix_fallocate(int fd, off_t offset, off_t size) {
    int saved = errno;
    int result = fallocate(fd, 0, offset, size) == 0 ? 0 : errno;
    errno = saved;
    return result;
}
DOOR int posix_fallocate64(int fd, off_t offset, off_t size) {
    return posix_fallocate(fd, offset, size);
}

/* --- syncs ----------------------------------------------------------------------------- */

static int sync_file(int fd, long call) {
    struct descriptor found;
    if (!followed(fd, &found)) return (int)syscall(call, fd);
    if (found.directory ? lies_directory : lies_fsync) return 0;
    take_lock();
    off_t until = syscall(SYS_lseek, journal, 0, SEEK_END);
    give_lock();
    int result = (int)syscall(call, fd);
    int saved = errno;
    if (result == 0) {
        take_lock();
        append(SYNC, found.inode, (uint64_t)until, 0, NULL, 0);
        give_lock();
    }
    errno = saved;
    return result;
}
DOOR int fsync(int fd) { return sync_file(fd, SYS_fsync); }
DOOR int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

/* --- names ------------------------------------------------------------------------------ */

static int rename_file(int from_dirfd, const char *from, int to_dirfd, const char *to,
                       unsigned flags) {
    struct place old = locate(from_dirfd, from), new = locate(to_dirfd, to);
    if (!old.followed && !new.followed)
        return (int)syscall(SYS_renameat2, from_dirfd, from, to_dirfd, to, flags);
    take_lock();
    int result = (int)syscall(SYS_renameat2, from_dirfd, from, to_dirfd, to, flags);
    int saved = errno;
    if (result == 0) {
        char names[2 * (NAME_MAX + 1)];
        if (old.followed != new.followed || old.directory != new.directory)
            not_followed("a rename between directories");
        else if (flags & ~RENAME_NOREPLACE)
            not_followed("a rename that exchanges");
        else {
            memcpy(names, old.name, old.length);
            names[old.length] = 0;
            memcpy(names + old.length + 1, new.name, new.length);
            append_text(RENAMED, old.directory, 0, 0, names, old.length + 1 + new.length);
        }
    }
    give_lock();
    errno = saved;
    return result;
}
DOOR int rename(const char *from, const char *to) {
    return rename_file(AT_FDCWD, from, AT_FDCWD, to, 0);
}
DOOR int renameat(int from_dirfd, const char *from, int to_dirfd, const char *to) {
    return rename_file(from_dirfd, from, to_dirfd, to, 0);
}
DOOR int renameat2(int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned flags) {
    return rename_file(from_dirfd, from, to_dirfd, to, flags);
}

static int remove_name(int dirfd, const char *path, int flags) {
    struct place place = locate(dirfd, path);
    if (!place.followed) return (int)syscall(SYS_unlinkat, dirfd, path, flags);
    take_lock();
    int result = (int)syscall(SYS_unlinkat, dirfd, path, flags);
    int saved = errno;
    if (result == 0) append_text(GONE, place.directory, 0, 0, place.name, place.length);
    give_lock();
    errno = saved;
    return result;
}
DOOR int unlink(const char *path) { return remove_name(AT_FDCWD, path, 0); }
DOOR int unlinkat(int dirfd, const char *path, int flags) { return remove_name(dirfd, path, flags); }
DOOR int rmdir(const char *path) { return remove_name(AT_FDCWD, path, AT_REMOVEDIR); }
DOOR int remove(const char *path) {
    int result = remove_name(AT_FDCWD, path, 0);
    return result < 0 && errno == EISDIR ? remove_name(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

DOOR int mkdirat(int dirfd, const char *path, mode_t mode) {
    struct place place = locate(dirfd, path);
    struct stat st;
    if (!place.followed) return (int)syscall(SYS_mkdirat, dirfd, path, mode);
    take_lock();
    int result = (int)syscall(SYS_mkdirat, dirfd, path, mode);
    int saved = errno;
    if (result == 0 && fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        made(place, st.st_ino, 1);
    give_lock();
    errno = saved;
    return result;
}
DOOR int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

DOOR int linkat(int from_dirfd, const char *from, int to_dirfd, const char *to, int flags) {
    if (locate(to_dirfd, to).followed) not_followed("a second name of a file");
    return (int)syscall(SYS_linkat, from_dirfd, from, to_dirfd, to, flags);
}
DOOR int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
DOOR int symlinkat(const char *target, int dirfd, const char *path) {
    if (locate(dirfd, path).followed) not_followed("a symbolic link");
    return (int)syscall(SYS_symlinkat, target, dirfd, path);
}
DOOR int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
