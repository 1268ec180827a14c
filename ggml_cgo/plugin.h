// The C interface of kernel plug-ins (docs/kernel-plugins.md): a shared object that exports epq_kernel_plugin. It needs
// this file, kernels.h and blocks.h, nothing else.
#ifndef PLUGIN_H
#define PLUGIN_H
#include "kernels.h"

// Rises with every change of kernels.h or blocks.h; a plug-in built for another version is refused.
enum { EPQ_PLUGIN_ABI = 1 };

typedef struct {
    uint32_t abi;         // EPQ_PLUGIN_ABI of the headers it was built with; stays first in every version
    const char *features; // what the CPU must have, separated by commas, in the words of cpuid ("AVX2,FMA3"); checked before any operation is called
    const char *base;     // the set that has whatever ops leaves out: its name, or NULL for the best one
    const mat_set *ops;   // name of the set, and its operations; NULL where those of base serve
} epq_plugin;

// Called once when the plug-in is loaded; what it returns stays valid. It must run on any CPU.
typedef const epq_plugin *epq_kernel_plugin_fn(void);
#endif
