/* Reads records of the store for the client in Python, with the reader in C of mmcached_reader.h.
 *
 *     Entry    the words of this process's entry in a ring: counts leases, and stops at a fork
 *     Reader   looks keys up, takes leases, and makes hits
 *     Lease    the bytes of a record in place, as a buffer; its lease ends when it dies, in any thread
 *     Place    where a hit lies: the token is made when it is asked for
 *
 * Python opens, maps and locks everything, as without this module. Each function holds the GIL, and runs no Python code
 * between the load and the store of a count, so no lock is needed and no signal handler interrupts a count.
 */
#define Py_LIMITED_API 0x030B0000 /* of Python 3.11: one build for all later ones */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#define MMCACHED_READER_IMPLEMENTATION
#include "mmcached_reader.h"

enum { MAX_DIGESTS = 4096, MAX_HEAD_BYTES = 4096, PREAMBLE_BYTES = 16, DIGEST_BYTES = 16, NUM_FIELD_PARTS = 5 };
enum { FAILED = -100 }; /* with a Python exception */
static PyTypeObject *lease_type, *place_type;

/* ---- Entry */

typedef struct {
    PyObject_HEAD
    mmc_reader r;
    Py_buffer words; /* without an object once it is stopped */
    PyObject *handle_type, *ring_id, *epoch;
    Py_ssize_t num_out;
    char is_paused, is_shared;
} Entry;

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *words, *handle_type, *ring_id, *epoch;
    mmc_reader r;
    memset(&r, 0, sizeof r);
    static char *names[] = {"words", "handle_type", "ring_id", "epoch", "num_slots", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOOOK", names, &words, &handle_type, &ring_id, &epoch,
                                     &r.ring.num_slots))
        return NULL;
    Entry *self = (Entry *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    if (PyObject_GetBuffer(words, &self->words, PyBUF_WRITABLE)) {
        Py_DECREF(self);
        return NULL;
    }
    if (r.ring.num_slots > 1 << MMC_SLOT_BITS ||
        (uint64_t)self->words.len < 8 * (mmc__first_touch(&r) + MMC_TOUCH_LOG + MMC_LATENCY)) {
        PyErr_SetString(PyExc_ValueError, "the entry has fewer words than a ring of so many slots");
        Py_DECREF(self);
        return NULL;
    }
    self->r = r;
    self->r.entry = (uint64_t *)self->words.buf;
    self->handle_type = Py_NewRef(handle_type), self->ring_id = Py_NewRef(ring_id), self->epoch = Py_NewRef(epoch);
    return (PyObject *)self;
}

static void entry_close(Entry *self)
{
    self->r.entry = NULL;
    PyBuffer_Release(&self->words);
}

static void entry_dealloc(Entry *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    entry_close(self);
    Py_XDECREF(self->handle_type);
    Py_XDECREF(self->ring_id);
    Py_XDECREF(self->epoch);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *entry_stop(Entry *self, PyObject *Py_UNUSED(none))
{
    entry_close(self);
    Py_RETURN_NONE;
}

static PyObject *entry_pause(Entry *self, PyObject *Py_UNUSED(none))
{
    self->is_paused = 1;
    Py_RETURN_NONE;
}

static PyObject *entry_resume(Entry *self, PyObject *is_shared)
{
    self->is_paused = 0;
    if (PyObject_IsTrue(is_shared)) self->is_shared = 1;
    Py_RETURN_NONE;
}

static PyMethodDef entry_methods[] = {
    {"pause", (PyCFunction)entry_pause, METH_NOARGS, "Give no lease back until `resume`: this process forks."},
    {"resume", (PyCFunction)entry_resume, METH_O,
     "resume(is_shared): go on after a fork; give no lease back any more if another process reads under them."},
    {"stop", (PyCFunction)entry_stop, METH_NOARGS, "Write no word any more, and let go of them."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef entry_members[] = {
    {"num_out", T_PYSSIZET, offsetof(Entry, num_out), READONLY, "Number of leases that have not ended."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot entry_slots[] = {{Py_tp_doc, "The words of this process's entry in a ring."},
                                    {Py_tp_new, (void *)entry_new},
                                    {Py_tp_dealloc, (void *)entry_dealloc},
                                    {Py_tp_methods, entry_methods},
                                    {Py_tp_members, entry_members},
                                    {0, NULL}};
static PyType_Spec entry_spec = {"mmcached_native.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT, entry_slots};

/* ---- Lease */

typedef struct {
    PyObject_HEAD
    Entry *entry;
    mmc_lease lease;
    uint64_t check; /* the record's checksum word */
    Py_buffer pages;
} Lease;

static void lease_finish(Lease *self)
{
    Entry *entry = self->entry;
    if (!self->lease.is_counted || entry->is_paused) return; /* paused: it may live on in a forked child, so it stays */
    if (entry->r.entry && !entry->is_shared) mmc__end_lease(&entry->r, &self->lease);
    self->lease.is_counted = 0;
    entry->num_out--;
}

static void lease_dealloc(Lease *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    lease_finish(self);
    PyBuffer_Release(&self->pages); /* last: the entry's lock goes with the mapping's last view */
    Py_DECREF(self->entry);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int lease_buffer(Lease *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, (void *)self->lease.data, (Py_ssize_t)self->lease.record.nbytes, 1,
                             flags);
}

static PyObject *lease_end(Lease *self, PyObject *Py_UNUSED(none))
{
    lease_finish(self);
    Py_RETURN_NONE;
}

static PyObject *lease_handle(Lease *self, void *Py_UNUSED(closure))
{
    const mmc_record *record = &self->lease.record;
    Entry *entry = self->entry;
    return PyObject_CallFunction(entry->handle_type, "OOKKKKsK", entry->ring_id, entry->epoch, record->slot,
                                 record->generation, record->offset, record->nbytes, "", record->nursery);
}

static PyMethodDef lease_methods[] = {
    {"end", (PyCFunction)lease_end, METH_NOARGS, "Give the lease back; the bytes must not be read any more."},
    {NULL, NULL, 0, NULL}};
static PyObject *lease_data(Lease *self, void *Py_UNUSED(closure)) { return PyMemoryView_FromObject((PyObject *)self); }

static PyGetSetDef lease_getters[] = {{"handle", (getter)lease_handle, NULL, "The record's place.", NULL},
                                      {"data", (getter)lease_data, NULL, "The bytes, as an array has them.", NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot lease_slots[] = {{Py_tp_doc, "The bytes of a record in place, until it dies."},
                                    {Py_tp_dealloc, (void *)lease_dealloc},
                                    {Py_tp_methods, lease_methods},
                                    {Py_tp_getset, lease_getters},
                                    {Py_bf_getbuffer, (void *)lease_buffer},
                                    {0, NULL}};
static PyType_Spec lease_spec = {"mmcached_native.Lease", sizeof(Lease), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots};

/* ---- Place */

typedef struct {
    PyObject_HEAD
    PyObject *ring_id, *epoch;
    uint64_t slot, generation;
} Place;

static PyObject *place_of(const Lease *lease)
{
    Place *self = PyObject_New(Place, place_type);
    if (!self) return NULL;
    self->ring_id = Py_NewRef(lease->entry->ring_id), self->epoch = Py_NewRef(lease->entry->epoch);
    self->slot = lease->lease.record.slot, self->generation = lease->lease.record.generation;
    return (PyObject *)self;
}

static void place_dealloc(Place *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_DECREF(self->ring_id);
    Py_DECREF(self->epoch);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *place_token(Place *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromFormat("%S.%S.%llu.%llu", self->ring_id, self->epoch, (unsigned long long)self->slot,
                                (unsigned long long)self->generation);
}

static PyGetSetDef place_getters[] = {{"token", (getter)place_token, NULL, "As `Handle.token`.", NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot place_slots[] = {{Py_tp_doc, "Where a hit lies."},
                                    {Py_tp_dealloc, (void *)place_dealloc},
                                    {Py_tp_getset, place_getters},
                                    {0, NULL}};
static PyType_Spec place_spec = {"mmcached_native.Place", sizeof(Place), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, place_slots};

/* ---- Reader: look-up and lease */

typedef struct {
    PyObject_HEAD
    mmc_reader r;
    Py_buffer pages; /* without an object once it is closed */
    Entry *entry;
    PyObject *nurseries, *map_nursery, *unreadable, *hit_type, *array_type;
    uint64_t store_epoch;
} Reader;

/* The nursery that was read last in one call: its file's size is asked for once. */
typedef struct {
    uint64_t id, nbytes;
    PyObject *pages;
} Nursery;

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *entry, *pages, *nurseries, *map_nursery, *unreadable, *hit_type, *array_type;
    mmc_reader r;
    unsigned long long board, slots, index;
    memset(&r, 0, sizeof r);
    static char *names[] = {"entry", "pages", "reader_id", "incarnation", "data_bytes", "index_words", "board", "slots",
                            "index", "nurseries", "map_nursery", "unreadable", "hit_type", "array_type", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOKKKKKKKOOOOO", names, &entry, &pages, &r.reader_id, &r.incarnation,
                                     &r.ring.data_bytes, &r.ring.index_words, &board, &slots, &index, &nurseries,
                                     &map_nursery, &unreadable, &hit_type, &array_type))
        return NULL;
    r.ring.num_slots = ((Entry *)entry)->r.ring.num_slots;
    Reader *self = (Reader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->entry = (Entry *)Py_NewRef(entry);
    if (PyObject_GetBuffer(pages, &self->pages, PyBUF_SIMPLE)) {
        Py_DECREF(self);
        return NULL;
    }
    if ((uint64_t)self->pages.len < index + 8 * r.ring.index_words || slots + 64 * r.ring.num_slots > index ||
        board + 8 * (MMC_ATTACHED + r.reader_id) >= slots || r.ring.data_bytes > board) {
        PyErr_SetString(PyExc_ValueError, "the tables lie outside the mapping");
        Py_DECREF(self);
        return NULL;
    }
    r.data = (uint8_t *)self->pages.buf;
    r.board = (const uint64_t *)(const void *)(r.data + board);
    r.slots = (const uint64_t *)(const void *)(r.data + slots);
    r.index = (const uint64_t *)(const void *)(r.data + index);
    self->r = r;
    self->nurseries = Py_NewRef(nurseries), self->map_nursery = Py_NewRef(map_nursery);
    self->unreadable = Py_NewRef(unreadable), self->hit_type = Py_NewRef(hit_type);
    self->array_type = Py_NewRef(array_type);
    return (PyObject *)self;
}

static void reader_dealloc(Reader *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject *const held[] = {(PyObject *)self->entry, self->nurseries, self->map_nursery, self->unreadable,
                              self->hit_type, self->array_type};
    PyBuffer_Release(&self->pages);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_XDECREF(held[i]);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *reader_close(Reader *self, PyObject *Py_UNUSED(none))
{
    PyBuffer_Release(&self->pages);
    Py_RETURN_NONE;
}

/* Whether leases may be taken; other threads may have closed reader or entry whenever Python code has run. */
static int may_take(Reader *self)
{
    if (!self->pages.obj || !self->entry->r.entry || self->entry->is_shared || !mmc__is_attached(&self->r)) return 0;
    self->r.entry = self->entry->r.entry;
    return 1;
}

static uint64_t size_of(PyObject *pages)
{
    PyObject *size = PyObject_CallMethod(pages, "size", NULL); /* of the file: it may have been cut short */
    const uint64_t nbytes = size ? PyLong_AsUnsignedLongLong(size) : 0;
    Py_XDECREF(size);
    if (PyErr_Occurred()) PyErr_Clear();
    return nbytes;
}

/* Let `known` be a nursery's pages, mapped if they are not; MMC_OK, MMC_UNREADABLE or FAILED. */
static int find_nursery(Reader *self, uint64_t id, uint64_t end, Nursery *known)
{
    if (known->id == id && known->nbytes >= end) return MMC_OK;
    PyObject *number = PyLong_FromUnsignedLongLong(id);
    PyObject *pages = number ? Py_XNewRef(PyDict_GetItemWithError(self->nurseries, number)) : NULL;
    if (number && !PyErr_Occurred() && (!pages || (uint64_t)PyObject_Size(pages) < end)) {
        Py_XDECREF(pages);
        pages = PyObject_CallFunction(self->map_nursery, "KK", id, end);
    }
    Py_XDECREF(number);
    Py_XDECREF(known->pages);
    known->pages = pages, known->id = id, known->nbytes = pages ? size_of(pages) : 0;
    if (!pages) {
        known->id = 0;
        if (!PyErr_ExceptionMatches(self->unreadable)) return FAILED;
        PyErr_Clear();
    }
    return known->nbytes >= end && (uint64_t)PyObject_Size(pages) >= end ? MMC_OK : MMC_UNREADABLE;
}

/* Take a lease of a place: MMC_OK, MMC_MISSING, MMC_DETACHED, MMC_UNREADABLE or FAILED. */
static int take_place(Reader *self, const mmc_record *record, int is_held, Nursery *nursery, Lease **taken)
{
    PyObject *pages = self->pages.obj;
    if (record->nursery) {
        const int outcome = find_nursery(self, record->nursery, record->offset + record->nbytes, nursery);
        if (outcome != MMC_OK) return outcome;
        pages = nursery->pages;
    }
    Lease *lease = PyObject_New(Lease, lease_type);
    if (!lease) return FAILED;
    memset(&lease->lease, 0, sizeof lease->lease);
    lease->entry = (Entry *)Py_NewRef((PyObject *)self->entry);
    lease->pages.obj = NULL;
    int outcome = MMC_DETACHED;
    if (may_take(self) && !PyObject_GetBuffer(pages, &lease->pages, PyBUF_SIMPLE)) {
        lease->lease.record = *record;
        lease->lease.data = (const uint8_t *)lease->pages.buf + record->offset;
        outcome = mmc__take(&self->r, &lease->lease, is_held);
    }
    if (PyErr_Occurred()) outcome = FAILED;
    if (outcome == MMC_OK) {
        lease->check = MMC_LOAD(self->r.slots + MMC_SLOT_WORDS * record->slot + MMC_CHECK);
        self->entry->num_out++;
        *taken = lease;
    } else
        Py_DECREF(lease);
    return outcome;
}

/* Look a key up and take a lease; as `take_place`, MMC_UNREADABLE if what the index shows cannot be mapped. */
static int take_key(Reader *self, const uint64_t digest[2], Nursery *nursery, Lease **taken)
{
    int outcome = MMC_UNREADABLE;
    mmc_record record;
    for (int num_looks = 0; num_looks < MMC_MAX_LOOKS; num_looks++) {
        if (!may_take(self)) return MMC_DETACHED;
        if (mmc_find(&self->r, digest, &record) != MMC_OK) return MMC_MISSING;
        outcome = take_place(self, &record, 0, nursery, taken);
        if (outcome != MMC_MISSING && outcome != MMC_UNREADABLE) return outcome;
    } /* replaced meanwhile: look again */
    return MMC_UNREADABLE;
}

/* Set the digest of a key, and keep it in `kept`; -1 with an exception. */
static int digest_of(PyObject *tenant, PyObject *key, PyObject *kept, uint64_t digest[2])
{
    PyObject *known = PyDict_GetItemWithError(kept, key);
    if (known) {
        memcpy(digest, PyBytes_AsString(known), DIGEST_BYTES);
        return 0;
    }
    if (PyErr_Occurred()) return -1;
    PyObject *tenant_bytes = PyUnicode_AsEncodedString(tenant, "utf-8", "surrogatepass");
    PyObject *key_bytes = tenant_bytes ? PyUnicode_AsEncodedString(key, "utf-8", "surrogatepass") : NULL;
    int outcome = -1;
    if (key_bytes) {
        mmc_digest(PyBytes_AsString(tenant_bytes), (uint64_t)PyBytes_Size(tenant_bytes), PyBytes_AsString(key_bytes),
                   (uint64_t)PyBytes_Size(key_bytes), digest);
        if (PyDict_Size(kept) >= MAX_DIGESTS) PyDict_Clear(kept);
        known = PyBytes_FromStringAndSize((const char *)digest, DIGEST_BYTES);
        outcome = known ? PyDict_SetItem(kept, key, known) : -1;
        Py_XDECREF(known);
    }
    Py_XDECREF(tenant_bytes);
    Py_XDECREF(key_bytes);
    return outcome;
}

/* Return the digests of keys, to be freed, with what they name on its way into the processor's caches. */
static uint64_t (*digests_of(Reader *self, PyObject *keys, PyObject *tenant, PyObject *kept))[2]
{
    const Py_ssize_t num_keys = PyList_Size(keys);
    uint64_t(*digests)[2] = PyMem_Malloc(DIGEST_BYTES * (size_t)(num_keys + 1));
    if (!digests) return (void *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < num_keys; i++)
        if (digest_of(tenant, PyList_GetItem(keys, i), kept, digests[i])) {
            PyMem_Free(digests);
            return NULL;
        }
    if (!may_take(self) || !self->r.ring.index_words || num_keys < 2) return digests;
    const uint64_t mask = self->r.ring.index_words - 1;
    for (Py_ssize_t i = 0; i < num_keys; i++) __builtin_prefetch(self->r.index + (digests[i][0] >> MMC_SLOT_BITS & mask));
    for (Py_ssize_t i = 0; i < num_keys; i++) {
        const uint64_t slot = MMC_LOAD(self->r.index + (digests[i][0] >> MMC_SLOT_BITS & mask)) % (1 << MMC_SLOT_BITS);
        if (slot >= self->r.ring.num_slots) continue;
        __builtin_prefetch(self->r.slots + MMC_SLOT_WORDS * slot);
        __builtin_prefetch(self->r.entry + MMC_FIRST_COUNT + 2 * slot, 1);
    }
    return digests;
}

static void end_all(PyObject *leases)
{
    for (Py_ssize_t i = 0; i < PyList_Size(leases); i++) {
        PyObject *each = PyList_GetItem(leases, i);
        if (each && Py_IS_TYPE(each, lease_type)) lease_finish((Lease *)each);
    }
}

/* ---- Reader: hits */

/* Return the array of a field (name, shape, dtype, offset, convert), or what `convert` makes of it. */
static PyObject *make_tensor(Reader *self, Lease *lease, PyObject *field)
{
    PyObject *array = PyObject_CallFunctionObjArgs(self->array_type, PyTuple_GetItem(field, 1), PyTuple_GetItem(field, 2),
                                                   (PyObject *)lease, PyTuple_GetItem(field, 3), NULL);
    PyObject *convert = PyTuple_GetItem(field, 4);
    if (!array || Py_IsNone(convert)) return array;
    PyObject *converted = PyObject_CallFunctionObjArgs(convert, array, NULL);
    Py_DECREF(array);
    return converted;
}

/* Return the plan for a record's head, or None; a new one is asked for. */
static PyObject *plan_of(Lease *lease, PyObject *plans, PyObject *make_plan)
{
    const mmc_lease *held = &lease->lease;
    uint32_t header_bytes;
    if (lease->check || held->record.nbytes < PREAMBLE_BYTES) Py_RETURN_NONE;
    memcpy(&header_bytes, held->data + 8, 4);
    const uint64_t head_bytes = (uint64_t)PREAMBLE_BYTES + header_bytes;
    if (head_bytes > held->record.nbytes || head_bytes > MAX_HEAD_BYTES) Py_RETURN_NONE;
    PyObject *head = PyBytes_FromStringAndSize((const char *)held->data, (Py_ssize_t)head_bytes);
    if (!head) return NULL;
    PyObject *plan = Py_XNewRef(PyDict_GetItemWithError(plans, head));
    if (!plan && !PyErr_Occurred()) plan = PyObject_CallFunctionObjArgs(make_plan, head, NULL);
    Py_DECREF(head);
    return plan;
}

/* Return the record of a lease in a form: (plans by head, makes a plan, decodes a record for which there is none). */
static PyObject *decode(Reader *self, Lease *lease, PyObject *form)
{
    PyObject *plan = plan_of(lease, PyTuple_GetItem(form, 0), PyTuple_GetItem(form, 1));
    if (!plan) return NULL;
    PyObject *record = NULL;
    if (Py_IsNone(plan) || PyLong_AsUnsignedLongLong(PyTuple_GetItem(plan, 0)) != lease->lease.record.nbytes)
        record = PyObject_CallFunctionObjArgs(PyTuple_GetItem(form, 2), (PyObject *)lease, NULL);
    else if ((record = PyDict_New())) {
        PyObject *fields = PyTuple_GetItem(plan, 1);
        const Py_ssize_t num_fields = PyTuple_Size(fields);
        for (Py_ssize_t i = 0; i < num_fields && record; i++) {
            PyObject *field = PyTuple_GetItem(fields, i), *value;
            if (PyTuple_Size(field) == NUM_FIELD_PARTS) value = make_tensor(self, lease, field);
            else value = Py_NewRef(PyTuple_GetItem(field, 1));
            if (!value || PyDict_SetItem(record, PyTuple_GetItem(field, 0), value)) Py_CLEAR(record);
            Py_XDECREF(value);
        }
    }
    Py_DECREF(plan);
    return record;
}

/* Replace each lease by its hit; -1 with an exception. */
static int make_hits(Reader *self, PyObject *found, PyObject *form, int is_view)
{
    const Py_ssize_t num = PyList_Size(found);
    for (Py_ssize_t i = 0; i < num; i++) {
        Lease *lease = (Lease *)PyList_GetItem(found, i);
        if (Py_IsNone((PyObject *)lease)) continue;
        PyObject *record = decode(self, lease, form), *hit = NULL;
        PyObject *place = !record ? NULL : is_view ? place_of(lease) : Py_NewRef(Py_None);
        if (place) hit = PyObject_CallFunctionObjArgs(self->hit_type, record, place, NULL);
        Py_XDECREF(record);
        Py_XDECREF(place);
        if (!hit) return -1;
        PyList_SetItem(found, i, hit); /* a lease that no tensor keeps ends here */
    }
    return 0;
}

static int take_all(Reader *self, PyObject *keys, uint64_t (*digests)[2], PyObject *found, Py_ssize_t *num_found)
{
    Nursery nursery = {0, 0, NULL};
    int outcome = MMC_OK;
    const Py_ssize_t num_keys = PyList_Size(keys);
    for (Py_ssize_t i = 0; i < num_keys; i++) {
        Lease *lease = NULL;
        outcome = take_key(self, digests[i], &nursery, &lease);
        if (outcome == MMC_OK) {
            __builtin_prefetch(lease->lease.data);
            ++*num_found;
        } else if (outcome != MMC_MISSING)
            break;
        PyList_SetItem(found, i, lease ? (PyObject *)lease : Py_NewRef(Py_None));
        outcome = MMC_OK;
    }
    Py_XDECREF(nursery.pages);
    return outcome;
}

static void count(Reader *self, PyObject *found, Py_ssize_t num_found, int touches, int counts_misses)
{
    const Py_ssize_t num = PyList_Size(found);
    for (Py_ssize_t i = 0; touches && i < num; i++)
        if (!Py_IsNone(PyList_GetItem(found, i)))
            mmc__touch(&self->r, &((Lease *)PyList_GetItem(found, i))->lease.record);
    if (touches) mmc__add(self->r.entry + MMC_HITS, (uint64_t)num_found);
    if (counts_misses) mmc__add(self->r.entry + MMC_MISSES, (uint64_t)(num - num_found));
}

static PyObject *reader_find(Reader *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 7) return PyErr_Format(PyExc_TypeError, "7 arguments, not %zd", num_args);
    PyObject *keys = args[0], *tenant = args[1], *kept = args[2], *form = args[3], *owned = args[4];
    const int touches = PyObject_IsTrue(args[5]), counts_misses = PyObject_IsTrue(args[6]);
    uint64_t(*digests)[2] = digests_of(self, keys, tenant, kept);
    PyObject *found = digests ? PyList_New(PyList_Size(keys)) : NULL;
    Py_ssize_t num_found = 0;
    int outcome = found ? take_all(self, keys, digests, found, &num_found) : FAILED;
    PyMem_Free(digests);
    int is_view = form != owned;
    if (outcome == MMC_OK && !may_take(self)) outcome = MMC_DETACHED;
    if (outcome == MMC_OK) {
        self->store_epoch = MMC_LOAD(self->r.board);
        count(self, found, num_found, touches, counts_misses);
        /* Views would leave too little space to other records: copy instead. */
        if (is_view && num_found && !mmc_may_hold(&self->r)) form = owned, is_view = 0;
        if (make_hits(self, found, form, is_view)) outcome = FAILED;
    }
    if (outcome == MMC_OK) return found;
    if (found) end_all(found); /* the traceback of an error may keep them */
    Py_XDECREF(found);
    return outcome == FAILED ? NULL : PyBool_FromLong(outcome == MMC_UNREADABLE);
}

static PyObject *reader_contains(Reader *self, PyObject *args)
{
    PyObject *keys, *tenant, *kept;
    if (!PyArg_ParseTuple(args, "OOO", &keys, &tenant, &kept)) return NULL;
    uint64_t(*digests)[2] = digests_of(self, keys, tenant, kept);
    PyObject *seen = digests ? PyList_New(PyList_Size(keys)) : NULL;
    const int is_open = may_take(self);
    for (Py_ssize_t i = 0; seen && is_open && i < PyList_Size(seen); i++) {
        mmc_record record;
        PyList_SetItem(seen, i, PyBool_FromLong(mmc_find(&self->r, digests[i], &record) == MMC_OK));
    }
    PyMem_Free(digests);
    if (is_open || !seen) return seen;
    Py_DECREF(seen);
    Py_RETURN_NONE;
}

/* Return a lease, None for a missing record, or True for one that cannot be mapped. */
static PyObject *lease_or_not(int outcome, Lease *lease, Nursery *nursery)
{
    Py_XDECREF(nursery->pages);
    if (outcome == FAILED) return NULL;
    if (outcome == MMC_OK) return (PyObject *)lease;
    if (outcome == MMC_UNREADABLE) Py_RETURN_TRUE;
    Py_RETURN_NONE;
}

static PyObject *reader_take(Reader *self, PyObject *args)
{
    mmc_record record;
    Lease *lease = NULL;
    Nursery nursery = {0, 0, NULL};
    int is_held;
    if (!PyArg_ParseTuple(args, "KKKKKp", &record.slot, &record.generation, &record.offset, &record.nbytes,
                          &record.nursery, &is_held))
        return NULL;
    const uint64_t end = record.nursery ? MMC_MAX_BYTES : self->r.ring.data_bytes;
    const int is_inside = record.slot < self->r.ring.num_slots && record.offset <= end &&
                          record.nbytes <= end - record.offset;
    const int outcome = is_inside && may_take(self) ? take_place(self, &record, is_held, &nursery, &lease) : MMC_MISSING;
    return lease_or_not(outcome, lease, &nursery);
}

static PyObject *reader_take_key(Reader *self, PyObject *args)
{
    unsigned long long first, second;
    Lease *lease = NULL;
    Nursery nursery = {0, 0, NULL};
    if (!PyArg_ParseTuple(args, "KK", &first, &second)) return NULL;
    const uint64_t digest[2] = {first, second};
    const int outcome = take_key(self, digest, &nursery, &lease);
    return lease_or_not(outcome, lease, &nursery);
}

static PyObject *reader_report(Reader *self, PyObject *args)
{
    PyObject *found;
    int counts_hits;
    if (!PyArg_ParseTuple(args, "Op", &found, &counts_hits)) return NULL;
    const int is_hit = Py_IS_TYPE(found, lease_type);
    if (may_take(self) && is_hit && counts_hits) mmc__touch(&self->r, &((Lease *)found)->lease.record);
    if (may_take(self) && (!is_hit || counts_hits)) mmc__add(self->r.entry + (is_hit ? MMC_HITS : MMC_MISSES), 1);
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"find", (PyCFunction)(void *)reader_find, METH_FASTCALL,
     "find(keys, tenant, kept, form, owned, touches, counts_misses): return a list with a hit or None for each key; "
     "False if no lease may be taken, True if a record cannot be mapped."},
    {"contains", (PyCFunction)reader_contains, METH_VARARGS,
     "contains(keys, tenant, kept): return which keys are shown; None if no lease may be taken."},
    {"take", (PyCFunction)reader_take, METH_VARARGS,
     "take(slot, generation, offset, nbytes, nursery, is_held): return a lease, or None, or True as `find`."},
    {"take_key", (PyCFunction)reader_take_key, METH_VARARGS,
     "take_key(first, second): look a digest up; return as `take`."},
    {"report", (PyCFunction)reader_report, METH_VARARGS, "report(lease, counts_hits): count a hit, or, for None, a miss."},
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Take no lease any more."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef reader_members[] = {
    {"store_epoch", T_ULONGLONG, offsetof(Reader, store_epoch), READONLY, "The store's epoch at the last `find`."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot reader_slots[] = {{Py_tp_doc, "Looks keys up in one mapped ring, and takes leases."},
                                     {Py_tp_new, (void *)reader_new},
                                     {Py_tp_dealloc, (void *)reader_dealloc},
                                     {Py_tp_methods, reader_methods},
                                     {Py_tp_members, reader_members},
                                     {0, NULL}};
static PyType_Spec reader_spec = {"mmcached_native.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, reader_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mmcached_native", "The read path of mmcached's client, in C.", -1, NULL, NULL, NULL, NULL,
    NULL};

PyMODINIT_FUNC PyInit_mmcached_native(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *entry = PyType_FromSpec(&entry_spec), *reader = PyType_FromSpec(&reader_spec);
    lease_type = (PyTypeObject *)PyType_FromSpec(&lease_spec);
    place_type = (PyTypeObject *)PyType_FromSpec(&place_spec);
    const int is_made = made && entry && reader && lease_type && place_type && !PyModule_AddObjectRef(made, "Entry", entry) &&
                        !PyModule_AddObjectRef(made, "Reader", reader) &&
                        !PyModule_AddObjectRef(made, "Lease", (PyObject *)lease_type) &&
                        !PyModule_AddIntConstant(made, "LAYOUT_VERSION", MMC_LAYOUT_VERSION);
    Py_XDECREF(entry);
    Py_XDECREF(reader);
    if (!is_made) Py_CLEAR(made);
    return made;
}
