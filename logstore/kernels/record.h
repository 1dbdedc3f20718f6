/* Records for Python, made and dropped at little cost.
 *
 * logstore.common.types.Record is a NamedTuple: a tuple of another type.  Its instances are made here as
 * tuples are, and those that hold only bytes and numbers are not shown to the cycle collector, as
 * CPython itself does with such tuples sooner or later: a long list of them would be walked again
 * and again.
 *
 * A scan makes and drops millions of records, each with four objects inside, and would spend most
 * of its time in malloc and free.  So dropped records are kept for the next ones, as CPython keeps
 * tuples, and their fields with them: where a field that nobody else holds has the right size, it is
 * overwritten.  Nothing can see the difference, for a field with one reference is reachable from
 * nowhere else.  Dropping a record does not even look at its fields, which have left the cache by
 * then; so those of records with a large field are counted, and while there are any it does look,
 * and keeps none of those.
 *
 * All of this runs under the GIL; without one nothing is kept.
 */
#ifndef LOGSTORE_RECORD_H
#define LOGSTORE_RECORD_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "batch_layout.h"

enum { LS_OFFSET, LS_TIMESTAMP, LS_KEY, LS_VALUE, LS_HEADERS, LS_FIELDS };

#define LS_RECORDS_KEPT 8192
#define LS_FIELD_KEPT 256 /* bytes of a key or value: 5 MiB at most are kept, and mostly 2 */

static PyTypeObject *ls_record_type;
static PyObject *ls_no_headers; /* () */

static struct {
    PyTupleObject *records[LS_RECORDS_KEPT]; /* with a reference to their type */
    int count;
    int64_t large; /* plain records in use that have a field above LS_FIELD_KEPT */
} ls_kept;

/* ---- fields that are overwritten ---- */

/* Both below steal `kept`, the field of a dropped record or NULL, and return a new reference, or
 * NULL with an error set. */

static inline PyObject *ls_new_bytes(PyObject *kept, const uint8_t *bytes, int32_t size)
{
    if (LS_LIKELY(kept != NULL && kept != Py_None)) {
        if (LS_LIKELY(Py_REFCNT(kept) == 1 && PyBytes_GET_SIZE(kept) == size && size > 1)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
            ((PyBytesObject *)kept)->ob_shash = -1; /* not computed yet */
#pragma GCC diagnostic pop
            ls_copy((uint8_t *)PyBytes_AS_STRING(kept), bytes, size);
            return kept;
        }
        Py_DECREF(kept);
    } else {
        Py_XDECREF(kept);
    }
    if (size < 0)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)bytes, size); /* up to one byte: shared */
}

#if PY_VERSION_HEX < 0x030C0000
#define LS_INT_DIGITS(n) Py_SIZE(n) /* negative for negative numbers */
#define LS_INT_DIGIT(n) ((PyLongObject *)(n))->ob_digit
#else
#define LS_INT_DIGITS(n)                                                                           \
    ((((PyLongObject *)(n))->long_value.lv_tag & 3) == 0                                           \
         ? (Py_ssize_t)(((PyLongObject *)(n))->long_value.lv_tag >> 3)                             \
         : -1)
#define LS_INT_DIGIT(n) ((PyLongObject *)(n))->long_value.ob_digit
#endif

/* Numbers of one or two digits that CPython does not share. */
static inline int ls_int_digits(int64_t value)
{
    if (value < (INT64_C(1) << 16) || value >= INT64_C(1) << 2 * PyLong_SHIFT)
        return 0;
    return value < (INT64_C(1) << PyLong_SHIFT) ? 1 : 2;
}

static inline PyObject *ls_new_int(PyObject *kept, int64_t value)
{
    int digits = ls_int_digits(value);
    if (LS_LIKELY(kept != NULL)) {
        if (LS_LIKELY(Py_REFCNT(kept) == 1 && digits != 0 && LS_INT_DIGITS(kept) == digits)) {
            LS_INT_DIGIT(kept)[0] = (digit)(value & PyLong_MASK);
            if (digits == 2)
                LS_INT_DIGIT(kept)[1] = (digit)(value >> PyLong_SHIFT);
            return kept;
        }
        Py_DECREF(kept);
    }
    return PyLong_FromLongLong(value);
}

/* ---- records that are kept ---- */

static inline int ls_is_large(PyObject *field) /* bytes or None */
{
    return field != Py_None && PyBytes_GET_SIZE(field) > LS_FIELD_KEPT;
}

/* Whether ls_new_record made it, without headers: an ordinary record is tracked, but see below. */
static inline int ls_is_plain(PyObject *self)
{
    return Py_TYPE(self) == ls_record_type && !PyObject_GC_IsTracked(self) &&
           Py_SIZE(self) == LS_FIELDS &&
           ((PyTupleObject *)self)->ob_item[LS_HEADERS] == ls_no_headers;
}

static void ls_drop_record(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject **fields = ((PyTupleObject *)self)->ob_item;
    if (LS_LIKELY(ls_is_plain(self))) {
        int large = 0;
        if (LS_UNLIKELY(ls_kept.large > 0)) {
            large = ls_is_large(fields[LS_KEY]) || ls_is_large(fields[LS_VALUE]);
            ls_kept.large -= large;
        }
#ifndef Py_GIL_DISABLED
        if (LS_LIKELY(!large && ls_kept.count < LS_RECORDS_KEPT)) {
            ls_kept.records[ls_kept.count++] = (PyTupleObject *)self;
            return;
        }
#endif
        for (int i = 0; i < LS_FIELDS; i++)
            Py_DECREF(fields[i]);
        PyObject_GC_Del(self);
        Py_DECREF(type);
        return;
    }
    /* What a tuple's own does; the interpreter calls this one for subclasses too.  Records that lie
     * too deep in others come here twice, untracked the second time: without their empty headers
     * they are not taken for plain ones. */
    PyObject_GC_UnTrack(self);
    if (Py_SIZE(self) == LS_FIELDS && fields[LS_HEADERS] == ls_no_headers)
        Py_CLEAR(fields[LS_HEADERS]);
    Py_TRASHCAN_BEGIN(self, ls_drop_record)
    for (Py_ssize_t i = Py_SIZE(self); --i >= 0;)
        Py_XDECREF(fields[i]);
    type->tp_free(self);
    Py_DECREF(type);
    Py_TRASHCAN_END
}

/* A timestamp that many records in a row share; `object` is owned, and NULL at first. */
typedef struct {
    PyObject *object;
    int64_t value;
} ls_shared_int;

/* A tuple of the type, with fields that are NULL or may be overwritten; NULL with an error set. */
static inline PyTupleObject *ls_blank_record(void)
{
    PyTupleObject *record;
    if (LS_LIKELY(ls_kept.count > 0)) {
        record = ls_kept.records[--ls_kept.count];
        if (LS_LIKELY(ls_kept.count >= 8)) { /* the next ones are not in the cache either */
            PyObject **soon = ls_kept.records[ls_kept.count - 4]->ob_item;
            __builtin_prefetch(ls_kept.records[ls_kept.count - 8], 1);
            __builtin_prefetch(&ls_kept.records[ls_kept.count - 8]->ob_item[LS_KEY], 1);
            __builtin_prefetch(soon[LS_OFFSET], 1);
            __builtin_prefetch(soon[LS_KEY], 1);
            __builtin_prefetch(soon[LS_VALUE], 1);
            __builtin_prefetch((char *)soon[LS_VALUE] + 64, 1);
            __builtin_prefetch((char *)soon[LS_VALUE] + 128, 1);
        }
        _Py_NewReference((PyObject *)record);
    } else {
        record = PyObject_GC_NewVar(PyTupleObject, ls_record_type, LS_FIELDS);
        if (record == NULL)
            return NULL;
        memset(record->ob_item, 0, LS_FIELDS * sizeof(PyObject *));
        record->ob_item[LS_HEADERS] = Py_NewRef(ls_no_headers);
    }
#if PY_VERSION_HEX >= 0x030E0000
    record->ob_hash = -1; /* not computed yet */
#endif
    return record;
}

/* Steals `headers`, which is NULL for a record without any. */
static inline PyObject *ls_new_record(int64_t offset, int64_t timestamp, ls_shared_int *last,
                                      const ls_record *r, PyObject *headers)
{
    PyTupleObject *record = ls_blank_record();
    PyObject **fields;
    if (LS_UNLIKELY(record == NULL)) {
        Py_XDECREF(headers);
        return NULL;
    }
    fields = record->ob_item;
    fields[LS_OFFSET] = ls_new_int(fields[LS_OFFSET], offset);
    if (last->object != NULL && last->value == timestamp) {
        Py_XDECREF(fields[LS_TIMESTAMP]);
        fields[LS_TIMESTAMP] = Py_NewRef(last->object);
    } else {
        fields[LS_TIMESTAMP] = ls_new_int(fields[LS_TIMESTAMP], timestamp);
        Py_XDECREF(last->object);
        last->object = Py_XNewRef(fields[LS_TIMESTAMP]);
        last->value = timestamp;
    }
    fields[LS_KEY] = ls_new_bytes(fields[LS_KEY], r->key, r->key_size);
    fields[LS_VALUE] = ls_new_bytes(fields[LS_VALUE], r->value, r->value_size);
    if (LS_UNLIKELY(headers != NULL))
        Py_SETREF(fields[LS_HEADERS], headers);
    if (LS_UNLIKELY(headers != NULL || fields[LS_OFFSET] == NULL || fields[LS_TIMESTAMP] == NULL ||
                    fields[LS_KEY] == NULL || fields[LS_VALUE] == NULL)) {
        /* From here on an ordinary tuple, which may hold anything and is dropped as one. */
        int failed = 0;
        for (int i = 0; i < LS_FIELDS; i++)
            if (fields[i] == NULL) {
                fields[i] = Py_NewRef(Py_None);
                failed = 1;
            }
        PyObject_GC_Track((PyObject *)record);
        if (failed)
            Py_CLEAR(record);
    } else {
        ls_kept.large += r->key_size > LS_FIELD_KEPT || r->value_size > LS_FIELD_KEPT;
    }
    return (PyObject *)record;
}

/* Append to a list and steal the reference; -1 with an error set. */
static inline int ls_append_record(PyObject *list, PyObject *record)
{
    int failed;
#ifndef Py_GIL_DISABLED
    Py_ssize_t size = PyList_GET_SIZE(list);
    if (LS_LIKELY(((PyListObject *)list)->allocated > size)) {
        PyList_SET_ITEM(list, size, record);
        Py_SET_SIZE((PyVarObject *)list, size + 1);
        return 0;
    }
#endif
    failed = PyList_Append(list, record);
    Py_DECREF(record);
    return failed;
}

/* Have `type`, a NamedTuple of five fields, made and dropped here; -1 with an error set. */
static int ls_adopt_record_type(PyTypeObject *type)
{
    if (type->tp_basicsize != PyTuple_Type.tp_basicsize ||
        type->tp_itemsize != PyTuple_Type.tp_itemsize || type->tp_dictoffset != 0 ||
        !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || !PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_ImportError, "logstore.common.types.Record is not laid out as a tuple");
        return -1;
    }
    ls_no_headers = PyTuple_New(0);
    if (ls_no_headers == NULL)
        return -1;
    ls_record_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    type->tp_dealloc = ls_drop_record;
    return 0;
}

#endif
