/* Counts the syncs of a process from inside its own address space, without slowing it down: preloaded, it stands
 * before the C library's functions. A tracer would count as well, and its stops would change what is counted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic unsigned long long unopened;
static _Atomic unsigned long long *count = &unopened;

__attribute__((constructor)) static void open_counter(void) {
    const char *path = getenv("FSYNC_COUNT_FILE");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof *count) != 0) return;
    void *page = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) count = page;
    close(fd);
}

int fsync(int fd) {
    atomic_fetch_add(count, 1);
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    atomic_fetch_add(count, 1);
    return (int)syscall(SYS_fdatasync, fd);
}
