/* A libnvidia-ml.so.1 of our own: the file named by NVML_SHIM says, line by line, `function card code` (card -1: any), and
   is read at each call. Codes are NVML's; 9999 hangs. Two cards. -DOLD leaves out what drivers before 510 lack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
typedef struct { unsigned gpu, memory; } rates;
static int cards[2] = {0, 1}, ready; /* a driver that went away (1) wants a new init */
static const unsigned long long MIB = 1048576;

static int code(const char *function, int card) {
    char name[64];
    int which, value;
    FILE *file = fopen(getenv("NVML_SHIM"), "r");
    while (file && fscanf(file, "%63s %d %d", name, &which, &value) == 3)
        if (!strcmp(name, function) && (which == card || which == -1)) {
            fclose(file);
            if (value == 9999) pause();
            if (value == 1) ready = 0;
            return value;
        }
    if (file) fclose(file);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) {
    int bad = code("init", -1);
    (void)flags; ready = !bad; return bad;
}
int nvmlShutdown(void) { ready = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) {
    int bad = code("count", -1);
    *n = 2; return bad ? bad : !ready;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &cards[i]; return code("handle", (int)i); }
int nvmlDeviceGetUUID(int *h, char *out, unsigned n) { snprintf(out, n, "GPU-0000000%d", *h); return code("uuid", *h); }
int nvmlDeviceGetName(int *h, char *out, unsigned n) { snprintf(out, n, "Shim %d", *h); return code("name", *h); }
int nvmlDeviceGetMemoryInfo(int *h, memory_v1 *m) {
    m->total = 8192 * MIB; m->free = 2048 * MIB; m->used = 6144 * MIB; return code("memory", *h);
}
int nvmlDeviceGetUtilizationRates(int *h, rates *r) { r->gpu = 97; r->memory = 1; return code("utilization", *h); }
int nvmlDeviceGetTemperature(int *h, int sensor, unsigned *t) { (void)sensor; *t = 65; return code("temperature", *h); }
int nvmlDeviceGetPowerUsage(int *h, unsigned *mw) { *mw = 300500; return code("power", *h); }

static int list(unsigned *n, process *out, unsigned pid, unsigned long long memory) {
    if (!out) { *n = 1; return 7; }
    out[0].pid = pid; out[0].memory = memory; out[0].gi = out[0].ci = 0xFFFFFFFF; *n = 1;
    return 0;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(int *h, unsigned *n, process *out) {
    (void)h; return list(n, out, (unsigned)getpid(), 2048 * MIB);
}
#else
int nvmlDeviceGetMemoryInfo_v2(int *h, memory_v2 *m) {
    m->total = 8192 * MIB; m->reserved = 400 * MIB; m->free = 2048 * MIB; m->used = 5744 * MIB; return code("memory", *h);
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *h, unsigned *n, process *out) {
    int bad = code("processes", *h);
    return bad ? bad : list(n, out, (unsigned)getpid(), 1024 * MIB);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(int *h, unsigned *n, process *out) {
    (void)h; return list(n, out, 4194305, ~0ULL);
}
#endif
