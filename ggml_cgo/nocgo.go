//go:build !cgo

// Package ggml_cgo without cgo offers no kernels: package kernels then runs its plain Go twins.
package ggml_cgo

import "errors"

// MatSets returns nothing: without cgo there are no C kernels.
func MatSets() []Mat { return nil }

// SetBooks does nothing: without cgo there are no C kernels.
func SetBooks(*Books) {}

// XCR0 returns 0: without cgo there is no set that asks.
func XCR0() uint64 { return 0 }

// PluginABI is 0: without cgo no plug-in can be loaded.
const PluginABI = 0

// Plugin is a shared object with kernels, loaded for good.
type Plugin struct {
	ABI                  int
	Name, Features, Base string
}

// OpenPlugin refuses: without cgo there is no way to call C.
func OpenPlugin(string) (*Plugin, error) {
	return nil, errors.New("this program was built without cgo")
}

// Mat is never called, because OpenPlugin gives no Plugin.
func (p *Plugin) Mat(base Mat) Mat { return base }
