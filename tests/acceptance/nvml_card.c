/* A libnvidia-ml.so.1 with one card of 24 GiB, nearly full; the file named by NVML_CARD says who holds it, a line each:
   `pid MiB`. It is read at each call. */
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
typedef struct { unsigned gpu, memory; } rates;
static int card;
static const unsigned long long MIB = 1048576;

static unsigned holders(process *out, unsigned room) {
    unsigned n = 0, pid;
    unsigned long long mib;
    FILE *file = fopen(getenv("NVML_CARD"), "r");
    while (file && fscanf(file, "%u %llu", &pid, &mib) == 2) {
        if (out && n < room) out[n] = (process){pid, mib * MIB, 0xFFFFFFFF, 0xFFFFFFFF};
        n++;
    }
    if (file) fclose(file);
    return n;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { (void)i; *h = &card; return 0; }
int nvmlDeviceGetUUID(void *h, char *out, unsigned n) { (void)h; snprintf(out, n, "GPU-5a5a5a5a-shared"); return 0; }
int nvmlDeviceGetName(void *h, char *out, unsigned n) { (void)h; snprintf(out, n, "Shared card"); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2 *m) {
    process held[16];
    unsigned n = holders(held, 16);
    (void)h;
    m->total = 24576 * MIB; m->reserved = 0; m->used = 0;
    for (unsigned i = 0; i < n && i < 16; i++) m->used += held[i].memory;
    m->free = m->total - m->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, rates *r) { (void)h; r->gpu = 97; r->memory = 1; return 0; }
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *t) { (void)h; (void)sensor; *t = 65; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { (void)h; *mw = 300500; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process *out) {
    unsigned room = *n;
    (void)h;
    *n = holders(out, out ? room : 0);
    return *n > room || !out ? 7 : 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, process *out) { (void)h; (void)out; *n = 0; return 0; }
