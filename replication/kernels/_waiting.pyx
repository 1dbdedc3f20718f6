# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""What waits, in C: the stub is its plain twin and says what each thing promises.

Steps of an operation are a few reads and writes of C integers: whole under a global interpreter
lock, and in a critical section without one. Timers and watch lists have real locks, because they
allocate, and an allocation may run the collector and let another thread in.
"""

cimport cython

import heapq

cdef object heappush = heapq.heappush
cdef object heappop = heapq.heappop
cdef long long LAST_MS = 0x7FFFFFFFFFFFFFFF


cdef inline long long add_ms(long long a, long long b) noexcept nogil:
    """The sum; the end of time where it lies behind, and likewise the beginning."""
    if b > 0 and a > LAST_MS - b:
        return LAST_MS
    if b < 0 and a < -LAST_MS - b:
        return -LAST_MS
    return a + b


cdef class TimerTask:
    cdef Bucket bucket
    cdef Py_ssize_t index
    cdef readonly long long expiry_ms

    def run(self):
        raise NotImplementedError

    @property
    def waiting(self):
        return self.bucket is not None

    cpdef bint cancel(self):
        cdef Bucket bucket = self.bucket
        if bucket is None:
            return False
        cdef Timer timer = bucket.timer
        with timer.lock:
            return leave(self)


cdef bint leave(TimerTask task) except -1:
    cdef Bucket bucket = task.bucket
    if bucket is None:
        return False
    task.bucket = None
    bucket.tasks[task.index] = None
    bucket.gone += 1
    if 2 * bucket.gone > len(bucket.tasks):
        bucket.close_gaps()
    return True


@cython.final
cdef class Bucket:
    cdef Timer timer
    cdef readonly TimingWheel wheel
    cdef Py_ssize_t slot
    cdef long long start_ms
    cdef list tasks  # None where one was cancelled
    cdef Py_ssize_t gone

    cdef int add(self, TimerTask task) except -1:
        task.index = len(self.tasks)
        self.tasks.append(task)
        task.bucket = self
        return 0

    cdef int close_gaps(self) except -1:
        cdef list before = self.tasks
        cdef object task
        self.tasks, self.gone = [], 0
        for task in before:
            if task is not None:
                self.add(<TimerTask>task)
        return 0


@cython.final
cdef class TimingWheel:
    cdef readonly long long tick_ms, interval_ms, current_ms, end_ms
    cdef readonly Py_ssize_t size
    cdef list buckets
    cdef readonly TimingWheel overflow

    def __init__(self, long long tick_ms, Py_ssize_t size, long long start_ms):
        if start_ms < 0 or tick_ms < 1 or size < 2:
            raise ValueError(f"start {start_ms} ms, tick {tick_ms} ms, {size} buckets")
        self.tick_ms, self.size = tick_ms, size
        self.interval_ms = tick_ms * size if tick_ms <= LAST_MS // size else LAST_MS
        self.current_ms = start_ms - start_ms % tick_ms
        self.end_ms = add_ms(self.current_ms, self.interval_ms)
        self.buckets = [None] * size

    cpdef void advance(self, long long now_ms):
        cdef TimingWheel wheel = self
        while (wheel is not None and now_ms > wheel.current_ms
               and now_ms - wheel.current_ms >= wheel.tick_ms):
            wheel.current_ms = now_ms = now_ms - now_ms % wheel.tick_ms
            wheel.end_ms = add_ms(now_ms, wheel.interval_ms)
            wheel = wheel.overflow

    cpdef TimingWheel coarser(self):
        if self.overflow is None:
            self.overflow = TimingWheel(self.interval_ms, self.size, self.current_ms)
        return self.overflow


cdef class Timer:
    cdef cython.pymutex lock
    cdef long long now_ms, bucket_count
    cdef readonly TimingWheel wheel
    cdef list queue  # (start, number of the bucket, bucket)

    def __init__(self, long long start_ms, long long tick_ms=1, Py_ssize_t wheel_size=20):
        self.wheel = TimingWheel(tick_ms, wheel_size, start_ms)
        self.now_ms = start_ms
        self.queue = []

    cpdef add(self, TimerTask task, long long delay_ms, now_ms=None):
        cdef long long base_ms = self.now_ms if now_ms is None else now_ms
        if task is None:
            raise TypeError("a task must be a TimerTask, not None")
        with self.lock:
            if task.bucket is not None:
                leave(task)
            task.expiry_ms = add_ms(base_ms, delay_ms)
            self.place(task)

    def advance(self, long long now_ms):
        cdef Py_ssize_t count = 0, taken
        cdef list due, errors = []
        while (due := self.next_due(now_ms)) is not None:
            taken = 0
            try:
                for task in due:
                    taken += 1
                    try:
                        task.run()
                    except Exception as error:
                        errors.append(error)
            finally:
                count += taken
                if taken < len(due):
                    self.put_back(due[taken:])
        raise_all(errors)
        return count

    def next_deadline_ms(self):
        cdef Bucket bucket
        with self.lock:
            while self.queue:
                bucket = self.queue[0][2]
                if len(bucket.tasks) > bucket.gone:
                    return bucket.start_ms
                self.pop()
        return None

    def __len__(self):
        cdef Py_ssize_t count = 0
        cdef Bucket bucket
        with self.lock:
            for entry in self.queue:
                bucket = entry[2]
                count += len(bucket.tasks) - bucket.gone
        return count

    cdef int put_back(self, list tasks) except -1:
        cdef TimerTask task
        with self.lock:
            for task in tasks:
                if task.bucket is None:
                    self.place(task)
        return 0

    cdef int place(self, TimerTask task) except -1:
        cdef TimingWheel wheel = self.wheel
        cdef long long number, expiry_ms = max(task.expiry_ms, wheel.current_ms)
        cdef Py_ssize_t slot
        cdef Bucket bucket
        while expiry_ms >= wheel.end_ms and wheel.end_ms < LAST_MS:
            wheel = wheel.coarser()
        number = expiry_ms // wheel.tick_ms
        slot = number % wheel.size
        bucket = wheel.buckets[slot]
        if bucket is None:
            bucket = Bucket()
            bucket.timer, bucket.wheel, bucket.slot = self, wheel, slot
            bucket.start_ms = number * wheel.tick_ms
            bucket.tasks = []
            wheel.buckets[slot] = bucket
            self.bucket_count += 1
            heappush(self.queue, (bucket.start_ms, self.bucket_count, bucket))
        return bucket.add(task)

    cdef Bucket pop(self):
        cdef Bucket bucket = heappop(self.queue)[2]
        bucket.wheel.buckets[bucket.slot] = None
        return bucket

    cdef list next_due(self, long long now_ms):
        cdef Bucket bucket
        cdef TimerTask task
        cdef object entry
        cdef list due
        cdef long long current_ms
        with self.lock:
            if not self.queue or <long long>self.queue[0][0] > now_ms:
                self.tick(now_ms)
                return None
            bucket = self.pop()
            self.tick(bucket.start_ms)
            current_ms = self.wheel.current_ms
            due = []
            for entry in bucket.tasks:
                if entry is None:
                    continue
                task = <TimerTask>entry
                if (task.expiry_ms <= current_ms
                        or task.expiry_ms - current_ms < self.wheel.tick_ms):
                    task.bucket = None
                    due.append(task)
                else:
                    self.place(task)
        return due

    cdef void tick(self, long long now_ms):
        self.now_ms = max(self.now_ms, now_ms)
        self.wheel.advance(now_ms)


def raise_all(list errors):
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several tasks failed", errors)


cdef class DelayedOperation(TimerTask):
    cdef readonly long long delay_ms
    cdef readonly bint completed
    cdef bint looking, again, expired
    cdef public object _purgatory

    def __init__(self, long long delay_ms):
        self.delay_ms = delay_ms

    def try_complete(self):
        raise NotImplementedError

    def on_complete(self):
        raise NotImplementedError

    def on_expiration(self):
        raise NotImplementedError

    cpdef bint force_complete(self) except -1:
        cdef bint answers
        with cython.critical_section(self):
            if self.completed:
                return False
            self.completed = True
            answers = not self.looking
        if answers:
            self.finish()
        return True

    def run(self):
        cdef bint answers
        with cython.critical_section(self):
            if self.completed:
                return
            self.completed = self.expired = True
            answers = not self.looking
        if answers:
            self.finish()

    cpdef bint attempt(self) except -1:
        if not self.begin():
            return False
        try:
            self.look()
        except BaseException:
            self.end()
            raise
        return self.end()

    def _register(
        self, purgatory, dict by_key not None, tuple keys not None, Timer timer not None, now_ms
    ):
        cdef bint waits
        if not self.begin():
            if self.completed:
                return False
            raise RuntimeError(f"{self!r} is registered by another thread, too")
        self._purgatory = purgatory
        try:
            waits = not self.look() and self.delay_ms > 0
            if waits:
                for key in keys:
                    self.watch(by_key, key)
                if not self.look():
                    timer.add(self, self.delay_ms, now_ms)
        except BaseException:
            self.abandon()
            raise
        self.end()
        return waits

    cdef int watch(self, dict by_key, key) except -1:
        cdef Watchers watchers
        while True:
            watchers = by_key.get(key)
            if watchers is None:
                watchers = by_key.setdefault(key, Watchers(by_key, key))
            if watchers.add(self):
                return 0

    cdef bint begin(self) except -1:
        with cython.critical_section(self):
            if self.completed:
                return False
            if self.looking:
                self.again = True
                return False
            self.looking = True
        return True

    cdef bint look(self) except -1:
        if not self.completed:
            self.try_complete()
        return self.completed

    cdef bint end(self) except -1:
        cdef bint completed, again
        cdef object error = None
        while True:
            with cython.critical_section(self):
                completed = self.completed
                again = self.again and not completed
                self.again = False
                if not again:
                    self.looking = False
            if not again:
                break
            try:
                self.look()
            except BaseException as caught:
                error = caught
        if completed:
            self.finish()
        if error is not None:
            raise error
        return completed

    cdef int abandon(self) except -1:
        cdef bint completed
        with cython.critical_section(self):
            completed = self.completed
            self.completed = True
            self.looking = False
        if completed:
            self.finish()
        return 0

    cdef int finish(self) except -1:
        self.cancel()
        self.on_complete()
        if self.expired:
            self.on_expiration()
            if self._purgatory is not None:
                self._purgatory.count_expiration()
        return 0


@cython.final
cdef class Watchers:
    cdef cython.pymutex lock
    cdef dict by_key
    cdef object key
    cdef list operations
    cdef bint dropped

    def __init__(self, dict by_key, key):
        self.by_key, self.key = by_key, key
        self.operations = []

    def __len__(self):
        with self.lock:
            return len(self.operations)

    cpdef bint add(self, DelayedOperation operation) except -1:
        if operation is None:
            raise TypeError("an operation must be a DelayedOperation, not None")
        with self.lock:
            if self.dropped:
                return False
            self.operations.append(operation)
        return True

    def try_complete(self, list errors):
        cdef DelayedOperation operation
        cdef list operations
        cdef Py_ssize_t count = 0
        cdef bint to_sweep = False
        with self.lock:
            operations = self.operations.copy()
        for operation in operations:
            try:
                if operation.completed:
                    to_sweep = True
                elif operation.attempt():
                    count += 1
            except Exception as error:
                errors.append(error)
                to_sweep = True
        if count or to_sweep:
            self.sweep()
        return count

    cpdef sweep(self):
        cdef DelayedOperation operation
        cdef list before, open = []
        with self.lock:
            before = self.operations  # released after the lock: what it lets go of may run code
            for operation in before:
                if not operation.completed:
                    open.append(operation)
            self.keep(open)

    def take(self):
        with self.lock:
            taken = self.operations
            self.keep([])
        return taken

    cdef int keep(self, list operations) except -1:
        self.operations = operations
        if not operations and not self.dropped:
            self.dropped = True
            del self.by_key[self.key]
        return 0
