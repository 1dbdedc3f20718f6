# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Native judgement of whole tables of batches: the fast twin of ``tests/reference``.

These functions only say where something is unusual: the rules, and the words for what breaks
them, are those of ``logstore.verify``. The loops make no Python object and run without the GIL. The
stub says what each function promises.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdlib cimport calloc
from logstore.kernels._common cimport *
from logstore.kernels._scan cimport View, view_of

from logstore.kernels._constants import SCAN_COLUMNS, BatchSurvey

cdef extern from "murmur3.h" nogil:
    ctypedef struct ls_digest:
        pass
    ls_digest ls_murmur3(const uint8_t *data, int64_t size) noexcept nogil

cdef extern from *:
    """
    typedef struct { unsigned __int128 value, scale; } ls_fold;

    static inline unsigned __int128 ls_wide(uint64_t high, uint64_t low)
    {
        return (unsigned __int128)high << 64 | low;
    }

    /* value = value * R + digest + offset * K, scale = scale * R, modulo 2^128. */
    static inline void ls_fold_in(ls_fold *f, ls_digest digest, int64_t offset,
                                  const ls_fold *factors)
    {
        unsigned __int128 hash = ls_wide(digest.high, digest.low);
        f->value = f->value * factors->value + hash + (unsigned __int128)(__int128)offset *
                                                          factors->scale;
        f->scale *= factors->value;
    }

    static inline void ls_fold_set(ls_fold *f, uint64_t value_high, uint64_t value_low,
                                   uint64_t scale_high, uint64_t scale_low)
    {
        f->value = ls_wide(value_high, value_low);
        f->scale = ls_wide(scale_high, scale_low);
    }

    static inline uint64_t ls_high(const ls_fold *f, int scale)
    {
        return (uint64_t)((scale ? f->scale : f->value) >> 64);
    }

    static inline uint64_t ls_low(const ls_fold *f, int scale)
    {
        return (uint64_t)(scale ? f->scale : f->value);
    }
    """
    ctypedef struct ls_fold:
        pass
    void ls_fold_in(ls_fold *f, ls_digest digest, int64_t offset,
                    const ls_fold *factors) noexcept nogil
    void ls_fold_set(ls_fold *f, uint64_t value_high, uint64_t value_low, uint64_t scale_high,
                     uint64_t scale_low)
    uint64_t ls_high(const ls_fold *f, int scale)
    uint64_t ls_low(const ls_fold *f, int scale)


cdef int64_t COLUMNS = len(SCAN_COLUMNS)
cdef int64_t INT32_LAST = 2147483647
cdef int64_t INT64_LAST = 0x7fffffffffffffff

cdef enum:
    CODEC_MASK = 0x07
    ZSTD = 4
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    KNOWN_BITS = 0x7f

    OFFSET_ENTRY = 8
    TIME_ENTRY = 12


# ---- tables ----

@cython.final
@cython.no_gc
cdef class Table:
    """The columns of ``scan_batches`` that are looked at; ``rows`` of each are in use."""

    cdef View held
    cdef const int64_t *position
    cdef const int64_t *size
    cdef const int64_t *base
    cdef const int64_t *last
    cdef const int64_t *base_timestamp
    cdef const int64_t *max_timestamp
    cdef const int64_t *epoch
    cdef const int64_t *producer
    cdef const int64_t *producer_epoch
    cdef const int64_t *sequence
    cdef const int64_t *attributes
    cdef const int64_t *count
    cdef const int64_t *magic
    cdef int64_t rows

    def __cinit__(self, columns, int64_t rows):
        cdef View held = view_of(columns)
        cdef int64_t capacity = held.size // <int64_t> sizeof(int64_t) // COLUMNS
        cdef const int64_t *cells = <const int64_t *> held.start
        if not 0 <= rows <= capacity or <size_t> cells % sizeof(int64_t):
            raise ValueError(f"{rows} rows of a table with room for {capacity}, aligned as int64")
        self.held, self.rows = held, rows
        self.position = cells
        self.size = cells + capacity
        self.base = cells + 2 * capacity
        self.last = cells + 3 * capacity
        self.base_timestamp = cells + 4 * capacity
        self.max_timestamp = cells + 5 * capacity
        self.epoch = cells + 6 * capacity
        self.producer = cells + 7 * capacity
        self.producer_epoch = cells + 8 * capacity
        self.sequence = cells + 9 * capacity
        self.attributes = cells + 10 * capacity
        self.count = cells + 11 * capacity
        self.magic = cells + 12 * capacity


@cython.final
cdef class Numbers:
    """Row numbers and the like, collected without the GIL."""

    cdef Block block

    def __dealloc__(self):
        discard(&self.block)

    cdef int add(self, int64_t number) except -1 nogil:
        if unlikely(not reserve(&self.block, sizeof(int64_t))):
            with gil:
                raise MemoryError
        (<int64_t *> (self.block.data + self.block.size))[0] = number
        self.block.size += sizeof(int64_t)
        return 0

    cdef list found(self):
        cdef const int64_t *number = <const int64_t *> self.block.data
        cdef int64_t i
        return [number[i] for i in range(self.block.size // <int64_t> sizeof(int64_t))]


@cython.final
@cython.no_gc
cdef class Survey:
    cdef Numbers odd, gaps, epochs, controls
    cdef int64_t records, min_timestamp, max_timestamp
    cdef bint holes, horizons, ordered, producers, transactional

    def __cinit__(self):
        self.odd, self.gaps, self.epochs, self.controls = (
            Numbers(), Numbers(), Numbers(), Numbers())


cdef inline bint is_hole(Table t, int64_t i) noexcept nogil:
    return t.count[i] != ls_add64(ls_sub64(t.last[i], t.base[i]), 1)


cdef inline bint is_odd(Table t, int64_t i) noexcept nogil:
    """Whether ``batch_rules.check_header`` has something to say of a batch."""
    cdef int64_t attributes = t.attributes[i]
    cdef bint control
    if t.magic[i] < 2:
        return attributes & CODEC_MASK >= ZSTD
    control = attributes & CONTROL
    if (attributes & CODEC_MASK > ZSTD
            or attributes & ~<int64_t> KNOWN_BITS
            or t.count[i] > ls_add64(ls_sub64(t.last[i], t.base[i]), 1)
            or t.count[i] == 0 and t.size[i] > LS_HEADER_SIZE
            or control and t.sequence[i] != -1):
        return True
    if t.producer[i] >= 0:
        if (t.producer_epoch[i] < 0 or t.sequence[i] < 0 and not control
                or control and not attributes & TRANSACTIONAL):
            return True
    elif (attributes & TRANSACTIONAL or t.producer[i] != -1
            or not -1 <= t.producer_epoch[i] <= 0 or not -1 <= t.sequence[i] <= 0):
        return True
    return (t.max_timestamp[i] < t.base_timestamp[i]
            and not attributes & (LOG_APPEND_TIME | DELETE_HORIZON) and not is_hole(t, i))


cdef int survey(Table t, int64_t expected, int64_t segment_base, int64_t next_base,
                Survey s) except -1 nogil:
    cdef int64_t i, epoch = 0, stamp
    cdef int64_t following = expected
    s.ordered = (t.base[0] >= segment_base
                 and ls_sub64(t.last[t.rows - 1], segment_base) <= INT32_LAST
                 and (next_base < 0 or t.last[t.rows - 1] < next_base))
    s.max_timestamp = t.max_timestamp[0]
    s.min_timestamp = -1
    for i in range(t.rows):
        if unlikely(is_odd(t, i)):
            s.odd.add(i)
        if unlikely(t.base[i] != following) and following >= 0:
            if t.base[i] < following:
                s.ordered = False
            elif not (t.magic[i] < 2 and t.count[i] < 0):
                s.gaps.add(i)
        following = ls_add64(t.last[i], 1)
        if unlikely(t.epoch[i] != epoch or i == 0):
            epoch = t.epoch[i]
            s.epochs.add(i)
        if likely(t.count[i] > 0):
            s.records = ls_add64(s.records, t.count[i])
        stamp = t.max_timestamp[i]
        if stamp > s.max_timestamp:
            s.max_timestamp = stamp
        if t.magic[i] == 2:
            if unlikely(is_hole(t, i)):
                s.holes = True
            if unlikely(t.attributes[i] & DELETE_HORIZON):
                s.horizons = True
            if t.producer[i] >= 0:
                s.producers = True
            if t.attributes[i] & TRANSACTIONAL:
                s.transactional = True
            if unlikely(t.attributes[i] & CONTROL):
                s.controls.add(i)
            if t.base_timestamp[i] < stamp \
                    and not t.attributes[i] & (LOG_APPEND_TIME | DELETE_HORIZON):
                stamp = t.base_timestamp[i]
        if stamp >= 0 and (stamp < s.min_timestamp or s.min_timestamp < 0):
            s.min_timestamp = stamp
    return 0


def survey_batches(columns, int64_t rows, int64_t expected, int64_t segment_base,
                   int64_t next_base):
    """What a table shows at a glance; see the stub."""
    cdef Table t
    cdef Survey s = Survey()
    if rows < 1:
        raise ValueError("a table without rows")
    t = Table(columns, rows)
    with nogil:
        survey(t, expected, segment_base, next_base, s)
    return BatchSurvey(
        s.records, s.holes, s.horizons, s.odd.found(), s.gaps.found() if s.ordered else None,
        s.epochs.found(), s.controls.found(), s.producers, s.transactional, s.min_timestamp,
        s.max_timestamp)


# ---- indexes ----

cdef int64_t ascending(const uint8_t *p, int64_t count, int width, int64_t limit) noexcept nogil:
    cdef int64_t key, offset, i, last_key = 0, last_offset = 0
    for i in range(count):
        if width == OFFSET_ENTRY:
            offset, key = ls_load32(p), ls_load32(p + 4)
            if not 0 <= key < limit or i and offset == last_offset:
                return i
        else:
            key, offset = ls_load64(p), ls_load32(p + 8)
        if i and (key <= last_key or offset < last_offset):
            return i
        last_key, last_offset = key, offset
        p += width
    return count


cdef int64_t count_ascending(data, int width, int64_t limit):
    cdef View view = view_of(data)
    cdef int64_t result
    with nogil:
        result = ascending(view.start, view.size // width, width, limit)
    return result


def ascending_offset_entries(data, int64_t log_size):
    """Entries at the start that ascend; see the stub."""
    return count_ascending(data, OFFSET_ENTRY, log_size)


def ascending_time_entries(data):
    """Entries at the start that ascend; see the stub."""
    return count_ascending(data, TIME_ENTRY, 0)


cdef int64_t match_offsets(const uint8_t *p, int64_t first, int64_t end, Table t,
                           int64_t start, int64_t segment_base, int64_t largest,
                           int64_t *covered, Numbers several) except -1 nogil:
    cdef int64_t offset, position, i, row = 0, at = 0, seen = 0
    for i in range(first, end):
        offset = ls_add64(segment_base, ls_load32(p + OFFSET_ENTRY * i))
        position = ls_load32(p + OFFSET_ENTRY * i + 4)
        if unlikely(position <= covered[0] or position == 0):
            return i
        position = ls_sub64(position, start)
        while row < t.rows and t.position[row] < position:
            row += 1
        if row == t.rows or t.position[row] != position:
            return i
        if at < row:
            at = row
        while at < t.rows and t.last[at] < offset:
            at += 1
        if at == t.rows or t.last[at] != offset:
            return i
        if unlikely(at != row):
            while seen <= at:
                if t.max_timestamp[seen] > largest:
                    largest = t.max_timestamp[seen]
                seen += 1
            several.add(i)
            several.add(largest)
        covered[0] = ls_add64(t.position[at], start)
    return end


cdef View take_entries(data, int64_t first, int64_t end, int width):
    cdef View view = view_of(data)
    if not 0 <= first <= end <= view.size // width:
        raise ValueError(f"entries {first}…{end} of {view.size // width}")
    return view


def match_offset_entries(data, int64_t first, int64_t end, columns, int64_t rows, int64_t start,
                         int64_t segment_base, int64_t largest, int64_t covered):
    """``(first entry that does not fit, byte covered, entries of several batches)``."""
    cdef View view = take_entries(data, first, end, OFFSET_ENTRY)
    cdef Table t = Table(columns, rows)
    cdef Numbers several = Numbers()
    with nogil:
        first = match_offsets(view.start, first, end, t, start, segment_base, largest, &covered,
                              several)
    found = several.found()
    return first, covered, list(zip(found[::2], found[1::2]))


cdef int64_t match_times(const uint8_t *p, int64_t first, int64_t end, Table t,
                         int64_t segment_base, bint trusted, int64_t *done,
                         int64_t *largest) noexcept nogil:
    cdef int64_t offset, timestamp, top, i, row, at = 0
    for i in range(first, end):
        timestamp = ls_load64(p + TIME_ENTRY * i)
        offset = ls_add64(segment_base, ls_load32(p + TIME_ENTRY * i + 8))
        while at < t.rows and t.last[at] < offset:
            at += 1
        if at == t.rows:
            return i
        top = largest[0]
        for row in range(done[0], at):
            if t.max_timestamp[row] > top:
                top = t.max_timestamp[row]
        if trusted and (top >= timestamp or t.max_timestamp[at] != timestamp
                        or t.last[at] != offset):
            return i
        if done[0] <= at and t.max_timestamp[at] > top:
            top = t.max_timestamp[at]
        largest[0] = top
        if done[0] <= at:
            done[0] = at + 1
    return end


def match_time_entries(data, int64_t first, int64_t end, columns, int64_t rows,
                       int64_t segment_base, bint trusted, int64_t done, int64_t largest):
    """``(first entry that does not fit, rows done, largest timestamp in them)``."""
    cdef View view
    cdef Table t
    if done < 0:
        raise ValueError(f"{done} rows done")
    view = take_entries(data, first, end, TIME_ENTRY)
    t = Table(columns, rows)
    with nogil:
        first = match_times(view.start, first, end, t, segment_base, trusted, &done, &largest)
    return first, done, largest


# ---- producers ----

cdef enum:
    SEEN_MARKER = 1  # only: what was before it is not known
    SEEN_BATCH
    SEEN_NOTHING_DUE  # a batch without a sequence
    EPOCH_FELL = -1  # in the place of the sequence that was due

ctypedef struct Producer:
    int64_t id
    int64_t last_offset
    int64_t epoch
    int32_t due
    int32_t state  # 0: a free slot


cdef inline int64_t slot_of(const Producer *slots, int64_t capacity, int64_t id) noexcept nogil:
    """Where a producer is, or would be; ``capacity`` is a power of two, and never full."""
    cdef uint64_t mixed = <uint64_t> id * <uint64_t> 0x9E3779B97F4A7C15ULL
    cdef int64_t at = <int64_t> (mixed >> 32) & (capacity - 1)
    while slots[at].state and slots[at].id != id:
        at = (at + 1) & (capacity - 1)
    return at


cdef inline int32_t sequence_after(int64_t first, int64_t span) noexcept nogil:
    """Sequences wrap from 2^31−1 to 0 (F-63)."""
    return <int32_t> (ls_add64(first, span) & INT32_LAST)


cdef class SequenceWatch:
    """What is due of each producer; see the stub."""

    cdef Producer *slots
    cdef int64_t capacity, used, most

    def __cinit__(self, int64_t most):
        if most < 1:
            raise ValueError(f"{most} producers")
        self.most = most
        self.capacity = 64
        self.slots = <Producer *> calloc(64, sizeof(Producer))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)

    @property
    def full(self):
        return self.used >= self.most

    cdef int grow(self) except -1 nogil:
        cdef int64_t i, capacity = self.capacity * 2
        cdef Producer *slots = <Producer *> calloc(<size_t> capacity, sizeof(Producer))
        if slots == NULL:
            with gil:
                raise MemoryError
        for i in range(self.capacity):
            if self.slots[i].state:
                slots[slot_of(slots, capacity, self.slots[i].id)] = self.slots[i]
        free(self.slots)
        self.slots, self.capacity = slots, capacity
        return 0

    cdef int watch(self, Table t, Numbers firsts, Numbers jumps) except -1 nogil:
        cdef int64_t i
        cdef Producer *known
        cdef int64_t epoch
        cdef bint control, begins
        for i in range(t.rows):
            if t.magic[i] != 2 or t.producer[i] < 0:
                continue
            control = t.attributes[i] & CONTROL
            if control and t.count[i] == 0:
                continue  # compacted: it changes nothing
            known = &self.slots[slot_of(self.slots, self.capacity, t.producer[i])]
            epoch = t.producer_epoch[i]
            if not known.state:
                if self.used >= self.most:
                    continue
                if self.used * 2 >= self.capacity:
                    self.grow()
                    known = &self.slots[slot_of(self.slots, self.capacity, t.producer[i])]
                self.used += 1
                known.id = t.producer[i]
                known.epoch = epoch
                known.last_offset = t.last[i]
                known.state = SEEN_MARKER
                if control:
                    continue
                firsts.add(i)
            elif 0 <= epoch < known.epoch:
                jumps.add(i)
                jumps.add(EPOCH_FELL)
                jumps.add(known.last_offset)
                if control:
                    continue
            elif control:
                if known.epoch != epoch:
                    known.epoch = epoch
                    known.last_offset = t.last[i]
                    known.state = SEEN_BATCH
                    known.due = 0
                continue
            elif known.state == SEEN_MARKER and known.epoch == epoch:
                firsts.add(i)
            elif known.state != SEEN_NOTHING_DUE:
                begins = known.epoch != epoch
                if t.sequence[i] >= 0 and t.sequence[i] != (0 if begins else known.due):
                    jumps.add(i)
                    jumps.add(0 if begins else known.due)
                    jumps.add(known.last_offset)
            known.epoch = epoch
            known.last_offset = t.last[i]
            known.state = SEEN_BATCH if t.sequence[i] >= 0 else SEEN_NOTHING_DUE
            known.due = sequence_after(
                t.sequence[i], ls_add64(ls_sub64(t.last[i], t.base[i]), 1))
        return 0

    def take(self, columns, int64_t rows):
        """``(rows of firsts, jumps)``; see the stub."""
        cdef Table t = Table(columns, rows)
        cdef Numbers firsts = Numbers(), jumps = Numbers()
        with nogil:
            self.watch(t, firsts, jumps)
        found = jumps.found()
        return firsts.found(), list(zip(found[::3], found[1::3], found[2::3]))


# ---- records ----

cdef bint fits(const uint8_t *p, const uint8_t *end, Table t, int64_t i) noexcept nogil:
    """Whether a section is sound (F-73), and its records agree with the header in row ``i``."""
    cdef ls_record r
    cdef int64_t count = t.count[i], base = t.base_timestamp[i], done
    cdef int64_t stamp, smallest = INT64_LAST, largest = -INT64_LAST, previous = -1
    if count <= 0 or count > (end - p) // LS_RECORD_SIZE_MIN:
        return count == 0 and p == end
    for done in range(count):
        if unlikely(ls_read_record(&p, end, &r) != LS_RECORD_OK) or unlikely(
                r.offset_delta <= previous):
            return False
        previous = r.offset_delta
        stamp = ls_add64(base, r.timestamp_delta)
        if stamp > largest:
            largest = stamp
        if stamp < smallest:
            smallest = stamp
    if t.attributes[i] & LOG_APPEND_TIME:
        smallest = largest = t.max_timestamp[i]
    return (p == end and previous <= ls_sub64(t.last[i], t.base[i])
            and largest == t.max_timestamp[i] and smallest >= 0)


cdef inline bint plain_and_sound(const uint8_t *data, int64_t n, Table t,
                                 int64_t i) noexcept nogil:
    cdef int64_t position = t.position[i], size = t.size[i]
    if (t.magic[i] != 2 or t.attributes[i] & (CODEC_MASK | CONTROL)
            or not 0 <= position <= n or not LS_HEADER_SIZE <= size <= n - position):
        return False
    return fits(data + position + LS_HEADER_SIZE, data + position + size, t, i)


def irregular_batches(data, columns, int64_t rows):
    """Rows whose records want a closer look; see the stub."""
    cdef View view = view_of(data)
    cdef Table t = Table(columns, rows)
    cdef Numbers irregular = Numbers()
    cdef int64_t i
    with nogil:
        for i in range(rows):
            if not plain_and_sound(view.start, view.size, t, i):
                irregular.add(i)
    return irregular.found()


def fits_in_section(payload, columns, int64_t row):
    """Whether unpacked records are as their header says; see the stub."""
    cdef View view = view_of(payload)
    cdef Table t = Table(columns, ls_add64(row, 1))
    cdef bint result
    with nogil:
        result = row >= 0 and fits(view.start, view.end, t, row)
    return result


# ---- fingerprints ----

def fold_batches(data, columns, offsets, int64_t first, int64_t end, factor, offset_factor,
                 bint heads=False):
    """Hash and fold batches: ``(value, scale)``; see the stub."""
    cdef View view = view_of(data)
    cdef View bases = view_of(offsets)
    cdef Table t
    cdef ls_fold fold, factors
    cdef int64_t i, position, size, start
    cdef bint outside = False
    ls_fold_set(&fold, 0, 0, 0, 1)
    ls_fold_set(&factors, factor >> 64, factor & 0xFFFF_FFFF_FFFF_FFFF,
                offset_factor >> 64, offset_factor & 0xFFFF_FFFF_FFFF_FFFF)
    if (not 0 <= first <= end <= bases.size // <int64_t> sizeof(int64_t)
            or <size_t> bases.start % sizeof(int64_t)):
        raise ValueError(f"batches {first}…{end} of {bases.size // <int64_t> sizeof(int64_t)}, "
                         "aligned as int64")
    t = Table(columns, end)
    with nogil:
        for i in range(first, end):
            position = t.position[i]
            size = t.size[i]
            start = 21 if t.magic[i] == 2 else 16  # what the checksum covers
            outside = position < 0 or position > view.size - start or size > view.size - position
            if outside:
                break
            if heads:  # the checksum before it, and the header
                start -= 4
                size = min(size, 61)
            ls_fold_in(&fold, ls_murmur3(view.start + position + start, max(size - start, 0)),
                       (<const int64_t *> bases.start)[i], &factors)
    if outside:
        raise ValueError(f"a batch at {position} is outside 0…{view.size}")
    return (<object> ls_high(&fold, False) << 64 | ls_low(&fold, False),
            <object> ls_high(&fold, True) << 64 | ls_low(&fold, True))
