/* LD_PRELOAD for the crash harness: at the MT_FAULT_AT-th call that changes a file, MT_FAULT_KIND happens:
   kill (SIGKILL), full (this and every later write fails with ENOSPC), once (only this one does),
   short (half of it is written), eio (fsync fails), term (SIGTERM), ro (the file system is read-only from
   then on). With kind clock the wall clock jumps back and forth all the time; with kind small, statvfs tells of
   MT_FAULT_FREE bytes that are free. Descriptors 0 to 2 are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int disk_is_full, read_only;

static const char* kind(void) {
  const char* k = getenv("MT_FAULT_KIND");
  return k ? k : "";
}

/* True at the chosen call. */
static int now(void) {
  const char* at = getenv("MT_FAULT_AT");
  const long n = atomic_fetch_add(&calls, 1) + 1;
  if (!at || n != atol(at)) return 0;
  if (strcmp(kind(), "kill") == 0) raise(SIGKILL);
  if (strcmp(kind(), "term") == 0) raise(SIGTERM);
  if (strcmp(kind(), "full") == 0) atomic_store(&disk_is_full, 1);
  if (strcmp(kind(), "ro") == 0) atomic_store(&read_only, 1);
  return 1;
}

/* -1 and EROFS once nothing may change any more. */
static int refused(void) {
  if (!atomic_load(&read_only)) return 0;
  errno = EROFS;
  return -1;
}

/* Bytes that may be written, or -1. */
static ssize_t allowed(size_t n) {
  const int hit = now();
  if (refused()) return -1;
  if (atomic_load(&disk_is_full) || (hit && strcmp(kind(), "once") == 0)) {
    errno = ENOSPC;
    return -1;
  }
  return hit && strcmp(kind(), "short") == 0 && n > 1 ? (ssize_t)(n / 2) : (ssize_t)n;
}

#define REAL(type, name, ...)                         \
  static type (*real)(__VA_ARGS__);                   \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void* data, size_t n) {
  REAL(ssize_t, write, int, const void*, size_t);
  if (fd <= 2) return real(fd, data, n);
  const ssize_t m = allowed(n);
  return m < 0 ? -1 : real(fd, data, (size_t)m);
}

/* One function under two names. */
#define PWRITE(name, type)                                                   \
  ssize_t name(int fd, const void* data, size_t n, type at) {                \
    REAL(ssize_t, name, int, const void*, size_t, type);                     \
    const ssize_t m = allowed(n);                                            \
    return m < 0 ? -1 : real(fd, data, (size_t)m, at);                       \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

int clock_gettime(clockid_t id, struct timespec* t) {
  REAL(int, clock_gettime, clockid_t, struct timespec*);
  static atomic_long reads;
  const int rc = real(id, t);
  if (id == CLOCK_REALTIME && strcmp(kind(), "clock") == 0)
    t->tv_sec += atomic_fetch_add(&reads, 1) % 2 ? 100000000 : -400000000;
  return rc;
}

int fsync(int fd) {
  REAL(int, fsync, int);
  if (now() && strcmp(kind(), "eio") == 0) {
    errno = EIO;
    return -1;
  }
  return real(fd);
}

int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  now();
  return refused() ? -1 : real(from, to);
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  REAL(int, renameat2, int, const char*, int, const char*, unsigned);
  now();
  return refused() ? -1 : real(from_fd, from, to_fd, to, flags);
}

int unlink(const char* path) {
  REAL(int, unlink, const char*);
  now();
  return refused() ? -1 : real(path);
}

int unlinkat(int fd, const char* path, int flags) {
  REAL(int, unlinkat, int, const char*, int);
  now();
  return refused() ? -1 : real(fd, path, flags);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  return refused() ? -1 : real(path, mode);
}

/* Opening is not counted, as few opens change anything. */
#define OPEN(name)                                                        \
  int name(const char* path, int flags, ...) {                            \
    REAL(int, name, const char*, int, ...);                               \
    va_list more;                                                         \
    va_start(more, flags);                                                \
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;       \
    va_end(more);                                                         \
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && refused()) return -1;  \
    return real(path, flags, mode);                                       \
  }
OPEN(open)
OPEN(open64)

/* Some libraries call it under this name. */
#define STATVFS(name, type)                                          \
  int name(const char* path, struct type* s) {                       \
    REAL(int, name, const char*, struct type*);                      \
    const int rc = real(path, s);                                    \
    if (rc == 0 && strcmp(kind(), "small") == 0) {                   \
      const char* bytes = getenv("MT_FAULT_FREE");                   \
      s->f_frsize = 1;                                               \
      s->f_bavail = bytes ? strtoull(bytes, NULL, 10) : 0;           \
    }                                                                \
    return rc;                                                       \
  }
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)

/* At the end, how many calls there were (MT_FAULT_COUNT names a file). */
__attribute__((destructor)) static void report(void) {
  const char* path = getenv("MT_FAULT_COUNT");
  if (!path) return;
  FILE* f = fopen(path, "w");
  if (!f) return;
  fprintf(f, "%ld\n", atomic_load(&calls));
  fclose(f);
}
