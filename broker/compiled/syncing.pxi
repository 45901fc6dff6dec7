# The thread of group commit, without the interpreter: it never waits for the GIL.


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* lock, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* lock)
    int pthread_mutex_lock(pthread_mutex_t* lock)
    int pthread_mutex_trylock(pthread_mutex_t* lock)
    int pthread_mutex_unlock(pthread_mutex_t* lock)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* lock)
    int pthread_cond_signal(pthread_cond_t* condition)


cdef extern from "sync.h" nogil:
    int data_sync(int descriptor)
    double monotonic_s()
    bint is_set_within(const int* flag, double seconds, double yield_max_s)


cdef extern from "<unistd.h>" nogil:
    Py_ssize_t write(int descriptor, const void* data, size_t size)


cdef double STAY_AWAKE_S = 200e-6
cdef double YIELD_MAX_S = 150e-6  # more than a client needs for its next request
cdef int SKIPS_MAX = 128


@cython.final
cdef class Syncs:
    """The current sync, and the next one, which can be extended until it begins. There is none
    after a failed one: what the kernel then has in memory proves nothing."""

    cdef pthread_mutex_t _lock
    cdef pthread_cond_t _request
    cdef int _signal_fd  # a pipe's end: a byte signals the loop that a sync is finished
    cdef bint _signalled
    cdef int _pending  # a sync is requested
    cdef bint _sleeping, _stopping
    cdef int _descriptor
    cdef int64_t _ticket  # of the next one, which covers all before it
    cdef int64_t _done  # of the last one that succeeded
    cdef int _error
    cdef double _duration_s

    def __cinit__(self, int signal_fd):
        pthread_mutex_init(&self._lock, NULL)
        pthread_cond_init(&self._request, NULL)
        self._signal_fd = signal_fd

    def __dealloc__(self):  # the thread, while it runs, has a reference
        pthread_cond_destroy(&self._request)
        pthread_mutex_destroy(&self._lock)

    cdef void _take_lock(self) noexcept:
        """The thread never waits while it holds it."""
        if pthread_mutex_trylock(&self._lock):
            with nogil:
                pthread_mutex_lock(&self._lock)

    def request(self, int descriptor, int64_t ticket):
        """Request a sync of the file; -1: nothing to sync. False: the sync of another file is
        pending, try again when one is finished."""
        cdef bint taken
        self._take_lock()
        taken = not self._pending or self._descriptor == descriptor
        if taken:
            self._descriptor, self._ticket = descriptor, ticket
            self._pending = True
            if self._sleeping:
                self._sleeping = False
                pthread_cond_signal(&self._request)
        pthread_mutex_unlock(&self._lock)
        return taken

    def finished(self):
        """The last ticket that is synced, how long the last sync took in seconds, and the number of
        its error or 0. What finishes after this call is signalled."""
        cdef int64_t done
        cdef int error
        cdef double duration_s
        self._take_lock()
        done, error, duration_s = self._done, self._error, self._duration_s
        self._signalled = False
        pthread_mutex_unlock(&self._lock)
        return done, duration_s, error

    def end(self):
        """Let `run` return once all requested syncs are done."""
        self._take_lock()
        self._stopping = True
        pthread_cond_signal(&self._request)
        pthread_mutex_unlock(&self._lock)

    def run(self):
        """The thread's main function."""
        with nogil:
            self._sync_loop()

    cdef void _sync_loop(self) noexcept nogil:
        cdef int descriptor, error
        cdef int64_t ticket
        cdef double began, duration_s
        cdef bint signals, is_awake = False
        cdef int skips = 0, skips_next = 0
        pthread_mutex_lock(&self._lock)
        while True:
            while not self._pending or self._error:
                if self._stopping:
                    pthread_mutex_unlock(&self._lock)
                    return
                if is_awake:
                    # The next one often follows at once, and waking a thread can take as long as
                    # a sync. After each unsuccessful try, twice as many as before are skipped.
                    is_awake = False
                    if skips:
                        skips -= 1
                    else:
                        pthread_mutex_unlock(&self._lock)
                        if is_set_within(&self._pending, STAY_AWAKE_S, YIELD_MAX_S):
                            skips_next = 0
                        else:
                            skips_next = skips = min(2 * skips_next or 1, SKIPS_MAX)
                        pthread_mutex_lock(&self._lock)
                    continue
                self._sleeping = True
                pthread_cond_wait(&self._request, &self._lock)
                self._sleeping = False
            is_awake = True
            descriptor, ticket = self._descriptor, self._ticket
            self._pending = False  # later requests are for the next one
            pthread_mutex_unlock(&self._lock)
            began = monotonic_s()
            error = data_sync(descriptor) if descriptor >= 0 else 0
            duration_s = monotonic_s() - began
            pthread_mutex_lock(&self._lock)
            self._error, self._duration_s = error, duration_s
            if not error:
                self._done = ticket
            signals, self._signalled = not self._signalled, True
            if signals:
                pthread_mutex_unlock(&self._lock)
                write(self._signal_fd, b"", 1)
                pthread_mutex_lock(&self._lock)
