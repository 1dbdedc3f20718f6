# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Partitions of a column of keys; ``tests/reference`` is its plain twin."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from logstore.kernels._common cimport *


cdef inline uint32_t load_little(const uint8_t *p) noexcept nogil:
    return p[0] | <uint32_t> p[1] << 8 | <uint32_t> p[2] << 16 | <uint32_t> p[3] << 24


cdef inline uint32_t murmur2(const uint8_t *p, int32_t size) noexcept nogil:
    """Kafka's ``Utils.murmur2``."""
    cdef uint32_t k, h = 0x9747B28Cu ^ <uint32_t> size
    cdef int32_t i, whole = size & ~3, left = size & 3
    for i in range(0, whole, 4):
        k = load_little(p + i) * 0x5BD1E995u
        h = (h * 0x5BD1E995u) ^ ((k ^ k >> 24) * 0x5BD1E995u)
    if left:
        if left == 3:
            h ^= <uint32_t> p[whole + 2] << 16
        if left >= 2:
            h ^= <uint32_t> p[whole + 1] << 8
        h = (h ^ p[whole]) * 0x5BD1E995u
    h = (h ^ h >> 13) * 0x5BD1E995u
    return h ^ h >> 15


cdef inline uint32_t rotate(uint32_t x, int bits) noexcept nogil:
    return x << bits | x >> (32 - bits)


cdef inline uint32_t murmur3(const uint8_t *p, int32_t size) noexcept nogil:
    """MurmurHash3, x86, 32 bit, seed 0."""
    cdef uint32_t k, h = 0
    cdef int32_t i, whole = size & ~3, left = size & 3
    for i in range(0, whole, 4):
        k = rotate(load_little(p + i) * 0xCC9E2D51u, 15) * 0x1B873593u
        h = rotate(h ^ k, 13) * 5 + 0xE6546B64u
    if left:
        k = p[whole]
        if left >= 2:
            k |= <uint32_t> p[whole + 1] << 8
        if left == 3:
            k |= <uint32_t> p[whole + 2] << 16
        h ^= rotate(k * 0xCC9E2D51u, 15) * 0x1B873593u
    h ^= <uint32_t> size
    h = (h ^ h >> 16) * 0x85EBCA6Bu
    h = (h ^ h >> 13) * 0xC2B2AE35u
    return h ^ h >> 16


def partition_column(str partitioner not None, int32_t partition_count, int64_t stop, offsets,
                     data, validity):
    """Partitions of Arrow keys; see the stub."""
    cdef Py_buffer ends, content, valid
    cdef bint have_content = False, have_valid = False, kafka
    cdef const uint8_t *bytes = NULL
    cdef const uint8_t *bits = NULL
    cdef int64_t i, bad = -1
    cdef int32_t low, high, partition
    cdef uint32_t h
    cdef uint8_t *out
    if partitioner not in ("murmur2", "murmur3"):
        raise ValueError(f"unknown partitioner {partitioner!r}")
    if partition_count < 1 or stop < 0:
        raise ValueError(f"{stop} rows on {partition_count} partitions")
    kafka = partitioner == "murmur2"
    PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
    try:
        if data is not None:
            PyObject_GetBuffer(data, &content, PyBUF_SIMPLE)
            have_content = True
            bytes = <const uint8_t *> content.buf
        if validity is not None:
            PyObject_GetBuffer(validity, &valid, PyBUF_SIMPLE)
            have_valid = True
            bits = <const uint8_t *> valid.buf
        # Divided, not multiplied: no ``stop`` may overflow its way past the check.
        if stop and (ends.len // 4 <= stop or (have_valid and valid.len < (stop + 7) // 8)):
            raise ValueError("the keys end before stop")
        result = PyByteArray_FromStringAndSize(NULL, 4 * stop)
        out = <uint8_t *> PyByteArray_AS_STRING(result)
        with nogil:
            for i in range(stop):
                partition = -1
                if not have_valid or bits[i >> 3] >> (i & 7) & 1:
                    memcpy(&low, <const uint8_t *> ends.buf + 4 * i, 4)
                    memcpy(&high, <const uint8_t *> ends.buf + 4 * i + 4, 4)
                    if unlikely(low < 0 or high < low
                                or high > (content.len if have_content else 0)):
                        bad = i
                        break
                    h = murmur2(bytes + low, high - low) if kafka else murmur3(
                        bytes + low, high - low)
                    partition = <int32_t> (h & 0x7FFFFFFFu) % partition_count
                memcpy(out + 4 * i, &partition, 4)
        if bad >= 0:
            raise ValueError(f"offsets of row {bad} descend or run past the data")
    finally:
        PyBuffer_Release(&ends)
        if have_content:
            PyBuffer_Release(&content)
        if have_valid:
            PyBuffer_Release(&valid)
    return result
