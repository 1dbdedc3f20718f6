# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Read-only windows onto a file, read or mapped without the GIL.

The ``mmap`` module holds the GIL in each of its calls, and ``os.pread`` makes new memory for each
window: two threads that read two files would wait for each other, or for the kernel's pages.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from logstore.kernels._common cimport *

cdef extern from "sys/types.h" nogil:
    ctypedef long off_t
    ctypedef long ssize_t

cdef extern from "sys/mman.h" nogil:
    """
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22 /* Linux 5.14; older headers lack it */
    #endif
    """
    void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
    int munmap(void *address, size_t size)
    int madvise(void *address, size_t size, int advice)
    int PROT_READ, MAP_SHARED, MADV_POPULATE_READ
    void *MAP_FAILED

cdef extern from "unistd.h" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE
    ssize_t pread(int fd, void *buf, size_t count, off_t offset)

cdef int64_t PAGE = sysconf(_SC_PAGESIZE)


cdef struct Pages:
    uint8_t *start  # of the page with the first byte; NULL when unmapped
    size_t size
    int64_t before  # bytes of the first page that were not asked for


cdef int map_pages(Pages *pages, int descriptor, int64_t position, int64_t size) except -1:
    cdef void *start
    if position < 0 or size < 1 or size > <int64_t> 0x7fffffffffffffff - PAGE:
        raise ValueError(f"{size} bytes at {position} are no pages")
    pages.before = position % PAGE
    pages.size = <size_t> (pages.before + size)
    with nogil:
        start = mmap(NULL, pages.size, PROT_READ, MAP_SHARED, descriptor,
                     position - pages.before)
    if start == MAP_FAILED:
        PyErr_SetFromErrno(OSError)
    pages.start = <uint8_t *> start
    return 0


cdef int populate_pages(const Pages *pages) except -1:
    cdef int failed
    while True:
        with nogil:
            failed = madvise(pages.start, pages.size, MADV_POPULATE_READ)
        if not failed:
            return 0
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)


cdef void unmap_pages(Pages *pages) noexcept:
    cdef uint8_t *start = pages.start
    pages.start = NULL
    if start != NULL:
        with nogil:
            munmap(start, pages.size)  # cannot fail: the range is one that mmap gave


cdef class ReadWindow:
    """Up to ``size`` bytes of the open file ``descriptor`` from ``position`` on, as they are now.

    A read-only buffer, short only at the end of the file. Its memory is kept for the next window
    (see memory.h): a scan reads into pages that it has touched before.

    Raises:
        OSError: the kernel refused, with its errno.
    """

    cdef Block block

    def __cinit__(self, int descriptor, int64_t position, int64_t size):
        cdef ssize_t done = 0
        if position < 0 or size < 1:
            raise ValueError(f"{size} bytes at {position} are no window")
        if not reserve(&self.block, size):
            raise MemoryError
        with nogil:
            while self.block.size < size:
                done = pread(descriptor, self.block.data + self.block.size,
                             <size_t> (size - self.block.size), position + self.block.size)
                if done > 0:
                    self.block.size += done
                elif done == 0 or errno != EINTR:
                    break
        if done < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        discard(&self.block)

    def __len__(self):
        return self.block.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block.data, self.block.size, 1, flags)


cdef class MappedWindow:
    """``size`` bytes of the open file ``descriptor`` from ``position`` on, as a read-only buffer.

    Nothing is read before ``populate``. The descriptor may be closed while the window lives. The
    mapping goes when the window is closed or collected; while somebody holds its buffer, neither
    can happen.

    Raises:
        OSError: the kernel refused, with its errno.
    """

    cdef Pages pages
    cdef int64_t size, exports

    def __cinit__(self, int descriptor, int64_t position, int64_t size):
        map_pages(&self.pages, descriptor, position, size)
        self.size = size

    def __dealloc__(self):
        unmap_pages(&self.pages)

    def populate(self):
        """Read every page in, so that no later look at one can be a ``SIGBUS``.

        Raises:
            OSError: EINVAL when the kernel is older than Linux 5.14; EFAULT or EHWPOISON when a
                page cannot be read or lies past the end of the file.
        """
        cdef Pages pages = self.pages
        if pages.start == NULL:
            raise ValueError("the window is closed")
        self.exports += 1  # no other thread unmaps it meanwhile
        try:
            populate_pages(&pages)
        finally:
            self.exports -= 1

    def close(self):
        """Unmap; a second close does nothing.

        Raises:
            BufferError: somebody reads through the window; it is unmapped when the last one ends.
        """
        if self.exports:
            raise BufferError("the window is in use")
        unmap_pages(&self.pages)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pages.start == NULL:
            raise BufferError("the window is closed")
        PyBuffer_FillInfo(
            view, self, self.pages.start + self.pages.before, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1
