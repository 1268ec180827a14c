package kernels

import (
	"strings"
	"sync"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/klauspost/cpuid/v2"
)

// features is what the CPU offers and what the operating system lets it use.
type features struct {
	avx2, fma, f16c bool
	avxvnni         bool
	avx512          bool // F, BW, VL, DQ and VNNI
	osxsave         bool // the system manages extended state, and xcr0 is its word
	xcr0            uint64
	asimd           bool
}

// Register state that the operating system saves, bits of XCR0 (Intel SDM volume 1, 13.3): SSE and AVX; AVX-512 needs
// the mask registers and both halves of the wide ones besides.
const (
	stateAVX    = 1<<1 | 1<<2
	stateAVX512 = stateAVX | 1<<5 | 1<<6 | 1<<7
)

// machine returns the features of this CPU.
var machine = sync.OnceValue(func() features {
	c := cpuid.CPU
	f := features{
		avx2:    c.Has(cpuid.AVX2),
		fma:     c.Has(cpuid.FMA3),
		f16c:    c.Has(cpuid.F16C),
		avxvnni: c.Has(cpuid.AVXVNNI),
		avx512:  c.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ, cpuid.AVX512VNNI),
		osxsave: c.Has(cpuid.OSXSAVE),
		asimd:   c.Has(cpuid.ASIMD),
	}
	if f.osxsave {
		f.xcr0 = ggml_cgo.XCR0()
	}
	return f
})

// missing names what set needs and f lacks, "" if nothing.
func missing(set string, f features) string {
	var m []string
	need := func(ok bool, what string) {
		if !ok {
			m = append(m, what)
		}
	}
	switch set {
	case "neon":
		need(f.asimd, "ASIMD")
	case "avx2", "avxvnni", "avx512":
		need(f.avx2, "AVX2")
		need(f.fma, "FMA")
		need(f.f16c, "F16C")
		if set == "avxvnni" {
			need(f.avxvnni, "AVX-VNNI")
		}
		state := uint64(stateAVX)
		if set == "avx512" {
			need(f.avx512, "AVX-512 F, BW, VL, DQ and VNNI")
			state = stateAVX512
		}
		need(f.osxsave && f.xcr0&state == state, "an operating system that saves its registers (XCR0)")
	}
	return strings.Join(m, ", ")
}
