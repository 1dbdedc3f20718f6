# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""A directory listed with sizes and times, many files to a call; a small file read in one call.

A start lists every partition and reads its small files. What Python makes of a ``stat`` or an
``open`` costs more than the call.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrnoWithFilenameObject
from libc cimport errno  # assigned to below, so under the name of its module
from libc.stdint cimport int64_t
from libc.string cimport strcmp, strlen, memcpy

cdef extern from "Python.h":
    object PyUnicode_DecodeFSDefault(const char *name)
    bytes PyUnicode_EncodeFSDefault(object name)

cdef extern from "dirent.h" nogil:
    ctypedef struct DIR:
        pass
    struct dirent:
        char d_name[256]
    DIR *opendir(const char *name)
    dirent *readdir(DIR *directory)
    int closedir(DIR *directory)
    int dirfd(DIR *directory)

cdef extern from "sys/stat.h" nogil:
    struct timespec:
        int64_t tv_sec
        long tv_nsec
    struct stat_t "stat":
        unsigned int st_mode
        int64_t st_size
        timespec st_mtim
    int fstatat(int directory, const char *name, stat_t *status, int flags)
    int fstat(int descriptor, stat_t *status)
    bint S_ISDIR(unsigned int mode)
    bint S_ISLNK(unsigned int mode)
    bint S_ISREG(unsigned int mode)

cdef extern from "fcntl.h" nogil:
    int AT_FDCWD, AT_SYMLINK_NOFOLLOW, O_RDONLY, O_NOCTTY, O_NONBLOCK, O_CLOEXEC
    int open(const char *name, int flags)

cdef extern from "unistd.h" nogil:
    ssize_t read(int descriptor, void *buffer, size_t size)
    int close(int descriptor)

cdef enum:
    ROWS = 64
    SMALL = 4096  # bytes
    A_FILE = 0
    A_DIRECTORY = 1
    OTHER = 2

cdef struct Row:
    char name[1024]  # d_name says 256, but 255 characters of exFAT are up to 765 bytes of UTF-8
    int64_t size, mtime_ms
    int kind

_new = tuple.__new__

cdef int64_t SECONDS_LAST = 0x7fffffffffffffff // 1000 - 1


cdef int stat_entry(int directory, const char *name, stat_t *status) noexcept nogil:
    """Of the target of a link: linked directories work. Of the link itself where it leads nowhere.

    The errno, ENOENT for what vanished meanwhile.
    """
    cdef int refused
    if fstatat(directory, name, status, 0) == 0:
        return 0
    refused = errno.errno
    if (refused != errno.ENOENT and refused != errno.ELOOP and refused != errno.ENOTDIR
            and refused != errno.EACCES and refused != errno.ENAMETOOLONG):
        return refused
    if fstatat(directory, name, status, AT_SYMLINK_NOFOLLOW) != 0:
        return errno.errno
    if not S_ISLNK(status.st_mode) and refused != errno.ENOENT:
        return refused
    return 0


cdef int read_rows(DIR *directory, Row *rows, int *failed) noexcept nogil:
    """Up to ROWS entries; fewer at the end. ``failed`` is the errno of a call that was refused."""
    cdef dirent *entry
    cdef size_t name_size
    cdef stat_t status
    cdef Row *row
    cdef int count = 0, refused
    while count < ROWS:
        errno.errno = 0
        entry = readdir(directory)
        if entry == NULL:
            failed[0] = errno.errno
            break
        if strcmp(entry.d_name, b".") == 0 or strcmp(entry.d_name, b"..") == 0:
            continue
        refused = stat_entry(dirfd(directory), entry.d_name, &status)
        if refused == errno.ENOENT:
            continue
        if refused:
            failed[0] = refused
            break
        row = rows + count
        name_size = strlen(entry.d_name) + 1
        if name_size > sizeof(row.name):
            failed[0] = errno.ENAMETOOLONG
            break
        memcpy(row.name, entry.d_name, name_size)
        # Milliseconds of a time that a file system took as it was given may not fit.
        status.st_mtim.tv_sec = min(max(status.st_mtim.tv_sec, -SECONDS_LAST), SECONDS_LAST)
        row.size = status.st_size
        row.mtime_ms = status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec // 1000000
        row.kind = OTHER
        if S_ISREG(status.st_mode):
            row.kind = A_FILE
        elif S_ISDIR(status.st_mode):
            row.kind = A_DIRECTORY
        count += 1
    return count


def scan_directory(path, bytes encoded, make, tuple kinds):
    """Entries of the directory as tuples of class ``make``: name, size, mtime in ms, kind.

    ``encoded`` is ``path`` as the file system has it; ``kinds`` are the ones of a regular file, of a
    directory and of all else. In no order; what vanishes is left out.

    Raises:
        OSError: with its errno and ``path``.
    """
    cdef Row rows[ROWS]
    cdef const char *name = encoded
    cdef DIR *directory
    cdef int count = ROWS, failed = 0, i
    cdef list found = []
    if strlen(name) != <size_t> len(encoded):
        raise ValueError("embedded null byte")
    with nogil:
        directory = opendir(name)
    if directory == NULL:
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)
    try:
        while count == ROWS:
            with nogil:
                count = read_rows(directory, rows, &failed)
            for i in range(count):
                found.append(_new(make, (
                    PyUnicode_DecodeFSDefault(rows[i].name), rows[i].size, rows[i].mtime_ms,
                    kinds[rows[i].kind],
                )))
        if failed:
            errno.errno = failed
            PyErr_SetFromErrnoWithFilenameObject(OSError, path)
    finally:
        with nogil:
            closedir(directory)
    return found


cdef ssize_t read_whole(const char *name, char *buffer) noexcept nogil:
    """Bytes of a regular file of fewer than SMALL; −1: another, or a call was refused; −2: there is
    no entry of that name."""
    cdef stat_t status
    cdef ssize_t part, done = 0
    cdef int descriptor = open(name, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    if descriptor < 0:
        if errno.errno != errno.ENOENT:
            return -1
        if fstatat(AT_FDCWD, name, &status, AT_SYMLINK_NOFOLLOW) == 0 or errno.errno != errno.ENOENT:
            return -1
        return -2
    if fstat(descriptor, &status) != 0 or not S_ISREG(status.st_mode) or status.st_size >= SMALL:
        done = -1
    while 0 <= done < SMALL:
        part = read(descriptor, buffer + done, SMALL - done)
        if part == 0:
            break
        done = done + part if part > 0 else -1
    close(descriptor)
    return done if done < SMALL else -1


def read_small(path):
    """The content of a regular file of fewer than 4,096 bytes. None: it is not such a file, or a
    call was refused, and nothing is said of why.

    Raises:
        FileNotFoundError: there is no entry of that name, not even a link that leads nowhere.
    """
    cdef char buffer[SMALL]
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef const char *name = encoded
    cdef ssize_t size
    if strlen(name) != <size_t> len(encoded):
        raise ValueError("embedded null byte")
    with nogil:
        size = read_whole(name, buffer)
    if size == -2:
        errno.errno = errno.ENOENT
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)
    return PyBytes_FromStringAndSize(buffer, size) if size >= 0 else None
