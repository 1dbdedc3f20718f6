/* The kernels and the files for the JVM, class logstore.Native.  Nothing is decided here. */
#define _GNU_SOURCE /* mremap */
#include <errno.h>
#include <fcntl.h>
#include <jni.h>
#include <sys/stat.h>
#include <unistd.h>

#include "column_builder.h"
#include "count.h"

#define LS_JNI(type, name) JNIEXPORT type JNICALL Java_logstore_Native_##name

/* ---- files ---- */

/* A descriptor, or a negative errno. */
LS_JNI(jint, open)(JNIEnv *env, jclass class, jbyteArray path)
{
    char name[4097];
    jsize size = (*env)->GetArrayLength(env, path);
    int descriptor;
    (void)class;
    if (size >= (jsize)sizeof name)
        return -ENAMETOOLONG;
    (*env)->GetByteArrayRegion(env, path, 0, size, (jbyte *)name);
    name[size] = 0;
    if (strlen(name) != (size_t)size)
        return -ENOENT;
    do
        descriptor = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* waits for no pipe */
    while (descriptor < 0 && errno == EINTR);
    return descriptor < 0 ? -errno : descriptor;
}

LS_JNI(void, close)(JNIEnv *env, jclass class, jint descriptor)
{
    (void)env;
    (void)class;
    (void)close(descriptor);
}

/* Inode, size and time of change in ms; false if the system refused. */
LS_JNI(jboolean, identity)(JNIEnv *env, jclass class, jint descriptor, jlongArray identity)
{
    struct stat s;
    jlong found[3];
    (void)class;
    if (fstat(descriptor, &s) != 0)
        return JNI_FALSE;
    found[0] = (jlong)s.st_ino;
    found[1] = (jlong)s.st_size;
#ifdef __APPLE__
    found[2] = (jlong)s.st_mtimespec.tv_sec * 1000 + s.st_mtimespec.tv_nsec / 1000000;
#else
    found[2] = (jlong)s.st_mtim.tv_sec * 1000 + s.st_mtim.tv_nsec / 1000000;
#endif
    (*env)->SetLongArrayRegion(env, identity, 0, 3, found);
    return JNI_TRUE;
}

/* How many of the bytes were read, fewer at the end of the file; -1 if the system refused. */
LS_JNI(jlong, read)(JNIEnv *env, jclass class, jint descriptor, jlong address, jlong size,
                    jlong position)
{
    jlong done = 0;
    (void)env;
    (void)class;
    while (done < size) {
        ssize_t count = pread(descriptor, (uint8_t *)(intptr_t)address + done,
                              (size_t)(size - done), (off_t)(position + done));
        if (count == 0)
            break;
        if (count > 0)
            done += count;
        else if (errno != EINTR)
            return -1;
    }
    return done;
}

/* ---- the records ---- */

/* Fills the builder, or the summary. */
typedef struct {
    ls_builder builder;
    ls_summary summary;
    int is_summary, extremes;
    ls_bounds bounds;
    ls_aborted *aborted;
} ls_reader;

/* Of columns, or of a summary with those extremes; 0 without memory. */
LS_JNI(jlong, create)(JNIEnv *env, jclass class, jint columns, jboolean is_summary, jint extremes)
{
    ls_reader *r = calloc(1, sizeof *r);
    (void)env;
    (void)class;
    if (r != NULL) {
        ls_builder_init(&r->builder, columns, INT32_MAX);
        r->summary = ls_summary_none();
        r->is_summary = is_summary != JNI_FALSE;
        r->extremes = extremes;
        r->bounds = ls_bounds_none();
    }
    return (jlong)(intptr_t)r;
}

LS_JNI(void, destroy)(JNIEnv *env, jclass class, jlong reader)
{
    ls_reader *r = (ls_reader *)(intptr_t)reader;
    (void)env;
    (void)class;
    ls_builder_discard(&r->builder);
    free(r->aborted);
    free(r);
}

/* The first six fields of ls_bounds but `aborted`, and that; false without memory. */
LS_JNI(jboolean, bound)(JNIEnv *env, jclass class, jlong reader, jlongArray bounds,
                        jlongArray aborted)
{
    ls_reader *r = (ls_reader *)(intptr_t)reader;
    jsize count = (*env)->GetArrayLength(env, aborted) / 3;
    jlong found[6];
    (void)class;
    _Static_assert(sizeof(ls_aborted) == 3 * sizeof(jlong), "an array of them is one of jlong");
    free(r->aborted);
    r->aborted = malloc((size_t)count * sizeof *r->aborted + 1);
    if (r->aborted == NULL)
        return JNI_FALSE;
    (*env)->GetLongArrayRegion(env, aborted, 0, 3 * count, (jlong *)r->aborted);
    (*env)->GetLongArrayRegion(env, bounds, 0, 6, found);
    r->bounds = (ls_bounds){found[0],   found[1], found[2],           found[3],
                            r->aborted, count,    (int)found[4] != 0, (int)found[5] != 0};
    return JNI_TRUE;
}

/* As ls_walk_order; `last` is an array of one. */
LS_JNI(jlong, order)(JNIEnv *env, jclass class, jlong data, jlong size, jlong below,
                     jlongArray last)
{
    jlong found = -1;
    int64_t offset, end;
    (void)class;
    (*env)->GetLongArrayRegion(env, last, 0, 1, &found);
    offset = found;
    end = ls_walk_order((const uint8_t *)(intptr_t)data, size, below, &offset);
    found = offset;
    (*env)->SetLongArrayRegion(env, last, 0, 1, &found);
    return end;
}

static void ls_tell(JNIEnv *env, const ls_builder *s, jlong position, jlongArray state)
{
    jlong told[3] = {position, s->rows, s->keys.data.size + s->values.data.size};
    (*env)->SetLongArrayRegion(env, state, 0, 3, told);
}

/* As ls_builder_run or ls_count. `state` takes the position and gives it back, with the rows and the bytes of
 * keys and values that are there now. */
LS_JNI(jint, run)(JNIEnv *env, jclass class, jlong reader, jlong data, jlong size, jlong origin,
                  jlong max_rows, jlong max_bytes, jlongArray state)
{
    ls_reader *r = (ls_reader *)(intptr_t)reader;
    jlong at = 0;
    int64_t position;
    int code = 0, status;
    (void)class;
    (*env)->GetLongArrayRegion(env, state, 0, 1, &at);
    position = at;
    r->builder.origin = origin;
    if (r->is_summary)
        status = ls_count((const uint8_t *)(intptr_t)data, size, &position, &r->bounds,
                          r->extremes, &r->summary, &code);
    else
        status = ls_builder_run(&r->builder, (const uint8_t *)(intptr_t)data, size, &position,
                                max_rows, max_bytes, &r->bounds, &code);
    ls_tell(env, &r->builder, position, state);
    return status;
}

static int ls_batch_at(jlong data, jlong size, ls_batch *b)
{
    const uint8_t *p = (const uint8_t *)(intptr_t)data;
    return ls_frame(p, p + size, b) == LS_OK && b->size == size && ls_fields(b) == LS_OK;
}

/* Whether data[0 … size) is one batch with the right checksum. */
LS_JNI(jboolean, isSound)(JNIEnv *env, jclass class, jlong data, jlong size)
{
    ls_batch b;
    (void)env;
    (void)class;
    return ls_batch_at(data, size, &b) && ls_crc_ok(&b);
}

static int ls_summarize_section(ls_reader *r, const uint8_t *payload, int64_t size,
                                const ls_batch *b)
{
    const uint8_t *at;
    const int code = ls_count_section(payload, payload + size, b, &r->bounds, &r->summary, &at);
    return code == LS_RECORD_OK ? LS_DECODE_END : LS_DECODE_BAD_RECORD;
}

/* As ls_builder_section, with the batch in `data` as it is stored. */
LS_JNI(jint, section)(JNIEnv *env, jclass class, jlong reader, jlong data, jlong size,
                      jlong payload, jlong payload_size, jlong position, jlongArray state)
{
    ls_reader *r = (ls_reader *)(intptr_t)reader;
    const uint8_t *content = (const uint8_t *)(intptr_t)payload;
    ls_batch b;
    int64_t bad;
    int code = 0, status = LS_DECODE_BAD_BATCH;
    (void)class;
    if (ls_batch_at(data, size, &b) && r->is_summary)
        status = ls_summarize_section(r, content, payload_size, &b);
    else if (ls_batch_at(data, size, &b))
        status = ls_builder_section(&r->builder, content, payload_size, &b, position, &r->bounds,
                                    &bad, &code);
    ls_tell(env, &r->builder, position, state);
    return status;
}

/* The five numbers of the summary, which begins anew. */
LS_JNI(void, summary)(JNIEnv *env, jclass class, jlong reader, jlongArray numbers)
{
    ls_reader *r = (ls_reader *)(intptr_t)reader;
    (void)class;
    _Static_assert(sizeof r->summary == 5 * sizeof(jlong), "a summary is an array of jlong");
    (*env)->SetLongArrayRegion(env, numbers, 0, 5, (const jlong *)&r->summary);
    r->summary = ls_summary_none();
}

enum { LS_RUN_FIELDS = 9 };

/* The number of runs; as many of them as `runs` has room for, nine numbers each. */
LS_JNI(jint, runs)(JNIEnv *env, jclass class, jlong reader, jlongArray runs)
{
    const ls_builder *s = &((ls_reader *)(intptr_t)reader)->builder;
    const ls_run *run = (const ls_run *)s->runs.data;
    jint count = (jint)(s->runs.size / (int64_t)sizeof *run);
    jint room = (*env)->GetArrayLength(env, runs) / LS_RUN_FIELDS;
    (void)class;
    for (jint i = 0; i < count && i < room; i++, run++) {
        jlong found[LS_RUN_FIELDS] = {run->end_row,      run->position,      run->base_offset,
                                      run->producer_id,  run->leader_epoch,  run->base_sequence,
                                      run->producer_epoch, run->attributes,  run->magic};
        (*env)->SetLongArrayRegion(env, runs, LS_RUN_FIELDS * i, LS_RUN_FIELDS, found);
    }
    return count;
}

static void ls_hand_block(jlong *to, ls_block *block)
{
    ls_block taken = ls_take(block);
    to[0] = (jlong)(intptr_t)taken.data;
    to[1] = taken.size;
    to[2] = taken.capacity;
}

static void ls_hand_strings(jlong *blocks, jlong *counts, ls_string_column *s)
{
    counts[0] = s->count;
    counts[1] = s->nulls;
    ls_hand_block(blocks, &s->offsets);
    ls_hand_block(blocks + 3, &s->data);
    ls_hand_block(blocks + 6, &s->valid);
}

enum { LS_BLOCKS = 15, LS_BLOCK_NUMBERS = 3 * LS_BLOCKS, LS_NUMBERS = LS_BLOCK_NUMBERS + 8 };

/* Hand the blocks out, each as address, size and capacity: offsets, timestamps, header lists; then
 * of keys, values, header names and header values the offsets, data and validity.  The numbers of
 * values and nulls of these four follow.  The builder is empty afterwards.  False without memory. */
LS_JNI(jboolean, finish)(JNIEnv *env, jclass class, jlong reader, jlongArray numbers)
{
    ls_builder *s = &((ls_reader *)(intptr_t)reader)->builder;
    jlong found[LS_NUMBERS], *counts = found + LS_BLOCK_NUMBERS;
    (void)class;
    if (!ls_builder_finish(s))
        return JNI_FALSE;
    ls_hand_block(found, &s->offsets);
    ls_hand_block(found + 3, &s->timestamps);
    ls_hand_block(found + 6, &s->header_lists);
    ls_hand_strings(found + 9, counts, &s->keys);
    ls_hand_strings(found + 18, counts + 2, &s->values);
    ls_hand_strings(found + 27, counts + 4, &s->header_names);
    ls_hand_strings(found + 36, counts + 6, &s->header_values);
    ls_builder_discard(s);
    (*env)->SetLongArrayRegion(env, numbers, 0, LS_NUMBERS, found);
    return JNI_TRUE;
}

LS_JNI(void, free)(JNIEnv *env, jclass class, jlong address, jlong capacity)
{
    (void)env;
    (void)class;
    ls_free((uint8_t *)(intptr_t)address, capacity);
}

/* ---- what Spark has otherwise ---- */

/* Make µs of ms in place, and set the bits of those that fit; the result is how many do not. */
LS_JNI(jlong, micros)(JNIEnv *env, jclass class, jlong times, jlong count, jlong valid)
{
    int64_t *time = (int64_t *)(intptr_t)times, nulls = 0;
    uint8_t *bits = (uint8_t *)(intptr_t)valid;
    (void)env;
    (void)class;
    memset(bits, 0xff, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) {
        if (LS_LIKELY(time[i] >= -(INT64_MAX / 1000) && time[i] <= INT64_MAX / 1000)) {
            time[i] *= 1000;
        } else {
            bits[i >> 3] &= (uint8_t) ~(1 << (i & 7));
            nulls++;
        }
    }
    return nulls;
}

/* Set the bits of the lists that are not empty; the result is how many are. */
LS_JNI(jlong, emptyLists)(JNIEnv *env, jclass class, jlong offsets, jlong count, jlong valid)
{
    const int32_t *offset = (const int32_t *)(intptr_t)offsets;
    uint8_t *bits = (uint8_t *)(intptr_t)valid;
    int64_t empty = 0;
    (void)env;
    (void)class;
    memset(bits, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) {
        if (offset[i] < offset[i + 1])
            bits[i >> 3] |= (uint8_t)(1 << (i & 7));
        else
            empty++;
    }
    return empty;
}

LS_JNI(jboolean, isAscii)(JNIEnv *env, jclass class, jlong data, jlong size)
{
    const uint8_t *p = (const uint8_t *)(intptr_t)data;
    uint8_t any = 0;
    (void)env;
    (void)class;
    for (int64_t i = 0; i < size; i++)
        any |= p[i];
    return any < 0x80;
}
