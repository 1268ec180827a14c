//go:build cgo

package ggml_cgo

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "plugin.h"

// The plug-in of a shared object, or NULL with the reason in why.
static const epq_plugin *plugin_open(const char *file, char *why, size_t size) {
    void *so = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    epq_kernel_plugin_fn *entry = so ? (epq_kernel_plugin_fn *)dlsym(so, "epq_kernel_plugin") : NULL;
    const epq_plugin *p = entry ? entry() : NULL;
    const char *e = entry ? "epq_kernel_plugin returned nothing" : dlerror();
    if (!p) snprintf(why, size, "%s", e ? e : "its epq_kernel_plugin is no function");
    return p;
}

// Sets live as long as the process, like the plug-ins; the list keeps them in sight of leak checkers.
typedef struct loaded { mat_set set; struct loaded *next; } loaded;
static loaded *all_loaded;

// The operations of base with those of ops over them. One thread at a time (loading).
static const mat_set *plugin_set(const mat_set *base, const mat_set *ops) {
    loaded *l = malloc(sizeof *l);
    if (!l) abort();
    *l = (loaded){*base, all_loaded};
    all_loaded = l;
    mat_set *s = &l->set;
    s->name = ops->name;
    for (int t = 0; t < MAT_TYPES; t++) {
        if (ops->rows[t]) s->rows[t] = ops->rows[t], s->wide[t] = NULL; // the base's wide shape is not the plug-in's
        if (ops->wide[t]) s->wide[t] = ops->wide[t];
    }
    if (ops->quantize_k) s->quantize_k = ops->quantize_k;
    if (ops->quantize_32) s->quantize_32 = ops->quantize_32;
    if (ops->pack_k) s->pack_k = ops->pack_k;
    if (ops->pack_32) s->pack_32 = ops->pack_32;
    return s;
}
*/
import "C"

import (
	"errors"
	"sync"
	"unsafe"
)

// PluginABI is the version of plugin.h that this program speaks.
const PluginABI = C.EPQ_PLUGIN_ABI

// loading guards the list of loaded sets.
var loading sync.Mutex

// Plugin is a shared object with kernels, loaded for good.
type Plugin struct {
	ABI                  int
	Name, Features, Base string // Base "": the best set
	c                    *C.epq_plugin
}

// OpenPlugin loads the shared object at file and calls its entry. Where ABI is not PluginABI nothing else of it is set.
func OpenPlugin(file string) (*Plugin, error) {
	path := C.CString(file)
	defer C.free(unsafe.Pointer(path))
	var why [512]C.char
	c := C.plugin_open(path, &why[0], C.size_t(len(why)))
	if c == nil {
		return nil, errors.New(C.GoString(&why[0]))
	}
	p := &Plugin{ABI: int(c.abi), c: c}
	if p.ABI != PluginABI || c.ops == nil {
		return p, nil
	}
	p.Name, p.Features, p.Base = C.GoString(c.ops.name), C.GoString(c.features), C.GoString(c.base)
	return p, nil
}

// Mat returns the plug-in's operations, with those of base, one of MatSets, where it has none.
func (p *Plugin) Mat(base Mat) Mat {
	loading.Lock()
	defer loading.Unlock()
	return &matSet{name: p.Name, c: C.plugin_set(base.(*matSet).c, p.c.ops)}
}
