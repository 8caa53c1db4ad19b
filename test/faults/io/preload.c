/*
 * Injects faults into the writes and syncs of the database. Built as a shared library and loaded by LD_PRELOAD. The file that
 * FAULT_CONTROL names is shared with the test: it sets `at` and `kind`, and reads `count` and `fired`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
  volatile int32_t count; /* Operations since it was armed. */
  volatile int32_t at;    /* The operation that fails; 0: none. */
  volatile int32_t kind;
  volatile int32_t fired; /* Operations that failed. */
};

enum { NONE, EIO_ONCE, NO_SPACE, SHORT_WRITE, LOST_WRITES };

static struct control *control;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULT_CONTROL");
  int fd = path ? open(path, O_RDWR) : -1;
  if (fd < 0) return;
  void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) control = found;
  close(fd);
}

static int is_database(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strstr(path, "/toolgate.sqlite") != NULL;
}

/* Returns the kind of fault of this operation. */
static int next(int fd) {
  if (!control || control->at == 0 || !is_database(fd)) return NONE;
  int count = ++control->count;
  int once = control->kind == EIO_ONCE;
  int isNow = once ? count == control->at : count >= control->at;
  /* After a short write the disk is full for one operation. */
  if (control->kind == SHORT_WRITE) isNow = count == control->at || count == control->at + 1;
  if (!isNow) return NONE;
  control->fired++;
  if (control->kind == SHORT_WRITE) return count == control->at ? SHORT_WRITE : NO_SPACE;
  return control->kind;
}

static ssize_t no_space(void) {
  errno = ENOSPC;
  return -1;
}

static ssize_t io_error(void) {
  errno = EIO;
  return -1;
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define WRITES(name, declaration, arguments, shortened) \
  ssize_t name declaration { \
    REAL(name); \
    switch (next(fd)) { \
      case EIO_ONCE: return io_error(); \
      case NO_SPACE: return no_space(); \
      case SHORT_WRITE: return real shortened; \
      case LOST_WRITES: return (ssize_t)size; \
      default: return real arguments; \
    } \
  }

WRITES(write, (int fd, const void *bytes, size_t size), (fd, bytes, size), (fd, bytes, size / 2))
WRITES(pwrite, (int fd, const void *bytes, size_t size, off_t at), (fd, bytes, size, at), (fd, bytes, size / 2, at))
WRITES(pwrite64, (int fd, const void *bytes, size_t size, off64_t at), (fd, bytes, size, at), (fd, bytes, size / 2, at))

#define SYNCS(name, declaration, arguments) \
  int name declaration { \
    REAL(name); \
    switch (next(fd)) { \
      case EIO_ONCE: return (int)io_error(); \
      default: return real arguments; \
    } \
  }

SYNCS(fsync, (int fd), (fd))
SYNCS(fdatasync, (int fd), (fd))
SYNCS(ftruncate, (int fd, off_t size), (fd, size))
SYNCS(ftruncate64, (int fd, off64_t size), (fd, size))
