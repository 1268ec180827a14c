package iotest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/uring"
)

// Severity of a finding. Bad is what costs half of the speed or more, or may end a run.
type Severity string

// The three severities.
const (
	Bad     Severity = "bad"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// Finding is something on this machine that costs speed or safety.
type Finding struct {
	What        string   `json:"what"`
	State       string   `json:"state"` // what was found, with numbers and where
	Consequence string   `json:"consequence"`
	Remedy      string   `json:"remedy"`
	Severity    Severity `json:"severity"`
}

// Fact is something that was looked at, good or bad.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Diagnosis is what Doctor found.
type Diagnosis struct {
	Findings []Finding `json:"findings"` // the worst first
	Facts    []Fact    `json:"facts"`
}

// Bad says whether a finding is.
func (d *Diagnosis) Bad() bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Severity == Bad })
}

// DoctorOptions say where to look.
type DoctorOptions struct {
	Paths  []string // of the model: its shards, or a folder where one shall be
	Tuning string   // folder of the stored findings of --tune
}

// Doctor looks at the settings of the machine and the place of a model. It writes nothing and takes a second at most.
func Doctor(opt DoctorOptions) *Diagnosis {
	d := &doctor{opt: opt, try: tryHere}
	return d.examine()
}

// trials are what can only be found out by doing it; tests put their own in place.
type trials struct {
	ring   func() []uring.Feature
	direct func(path string) (align int, lost []uring.Loss, err error)
	huge   func() (got, wanted int64, err error)
	extent func(path string) (extents int, bytes int64, err error)
	shards func(path string) []string
	cpu    func() (set, why string, vector bool)
}

var tryHere = trials{ring: uring.Probe, direct: tryDirect, huge: tryHugePages, extent: countExtents, shards: shardsOf, cpu: kernelSet}

// doctor collects facts and findings.
type doctor struct {
	host
	opt DoctorOptions
	try trials
	Diagnosis
}

func (d *doctor) examine() *Diagnosis {
	d.Findings = []Finding{}
	d.examineKernel()
	d.examineMemory()
	d.examineGroups()
	d.examineCPU()
	d.examinePower()
	d.examinePaths()
	order := []Severity{Bad, Warning, Note}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int { return slices.Index(order, a.Severity) - slices.Index(order, b.Severity) })
	return &d.Diagnosis
}

func (d *doctor) fact(name, format string, args ...any) {
	d.Facts = append(d.Facts, Fact{name, fmt.Sprintf(format, args...)})
}

func (d *doctor) find(s Severity, what, state, consequence, remedy string) {
	for _, f := range d.Findings {
		if f.What == what && f.State == state {
			return
		}
	}
	d.Findings = append(d.Findings, Finding{what, state, consequence, remedy, s})
}

// WriteText prints the findings for people, and with facts all that was looked at, as Markdown for a bug report.
func (d *Diagnosis) WriteText(w io.Writer, facts bool) error {
	var s strings.Builder
	if facts {
		s.WriteString("| looked at | found |\n| --- | --- |\n")
		for _, f := range d.Facts {
			fmt.Fprintf(&s, "| %s | %s |\n", f.Name, strings.ReplaceAll(f.Value, "|", "/"))
		}
		s.WriteByte('\n')
	}
	for _, f := range d.Findings {
		fmt.Fprintf(&s, "%s: %s: %s\n    so:  %s\n    do:  %s\n", f.Severity, f.What, f.State, f.Consequence, f.Remedy)
	}
	if len(d.Findings) == 0 {
		fmt.Fprintf(&s, "nothing found: %d things looked at, all as they should be\n", len(d.Facts))
	}
	_, err := io.WriteString(w, s.String())
	return err
}

func tryDirect(path string) (int, []uring.Loss, error) {
	f, err := uring.OpenFiles([]string{path}, uring.DirectPreferred)
	if err != nil {
		return 0, nil, err
	}
	return f.Align(0), f.Lost(), f.Close()
}

// trialArena is large enough to see whether the kernel has huge pages to give, and small enough to be at once.
const trialArena = 64 << 20

// tryHugePages asks for a small arena and sees how much of it is on huge pages.
func tryHugePages() (got, wanted int64, err error) {
	b, err := mem.Alloc("doctor", trialArena)
	if err != nil {
		return 0, trialArena, err
	}
	b.Touch(1)
	return hugeBytes(b.Bytes()), trialArena, b.Free()
}

// kernelSet says which kernels compute here.
func kernelSet() (set, why string, vector bool) {
	b := kernels.Best()
	return b.Name, kernels.Explain(), b.Name != "scalar"
}

// shardsOf lists the files of a model: its shards, the file itself, or of a folder the largest.
func shardsOf(path string) []string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if p, err := choose(path); err == nil {
			path = p
		}
	}
	f, err := gguf.Open(path)
	if err != nil {
		return []string{path}
	}
	var list []string
	for _, s := range f.Shards {
		list = append(list, s.Path)
	}
	return list
}

// countExtents asks the file system in how many pieces a file lies (FIEMAP, Documentation/filesystems/fiemap.rst): with
// room for none it counts.
func countExtents(path string) (int, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	n, err := fiemap(f)
	return n, info.Size(), err
}

func errName(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) && unix.ErrnoName(errno) != "" {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}
