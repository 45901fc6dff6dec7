/* libFuzzer around Python: each input goes to `check` of tests/fuzz/deep_checks.py, the first byte as
 * a number; an exception is a finding. The compiled part that is loaded was built with the fuzzer's coverage and the
 * address sanitizer, whose symbols this program exports (`fuzz_deep.py` builds both). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static PyObject *check;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    config.site_import = 1;
    PyConfig_SetBytesString(&config, &config.executable, getenv("FUZZ_PYTHON"));
    PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    PyObject *module = PyImport_ImportModule("deep_checks");
    check = module ? PyObject_GetAttrString(module, "check") : NULL;
    if (check == NULL) {
        PyErr_Print();
        exit(2);
    }
    return 0;
}

/* Bytes of their very own size by malloc, where the sanitizer sees who reads beyond them; Python's
 * own allocator, which is twice as fast for all else, gives back to free() what it does not know. */
static PyObject *bytes_of(const uint8_t *data, size_t size) {
    PyBytesObject *made = malloc(offsetof(PyBytesObject, ob_sval) + size + 1);
    if (made == NULL) abort();
    PyObject_InitVar((PyVarObject *)made, &PyBytes_Type, (Py_ssize_t)size);
    memcpy(made->ob_sval, data, size);
    made->ob_sval[size] = 0;
    made->ob_shash = -1;
    return (PyObject *)made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    PyObject *kind = PyLong_FromLong(data[0]);
    PyObject *input = bytes_of(data + 1, size - 1);
    PyObject *result = PyObject_CallFunctionObjArgs(check, kind, input, NULL);
    if (result == NULL) {
        PyErr_Print();
        abort();
    }
    Py_DECREF(result);
    Py_DECREF(input);
    Py_DECREF(kind);
    return 0;
}
