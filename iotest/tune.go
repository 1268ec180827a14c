package iotest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Tuning is what a sweep found out about a disk.
type Tuning struct {
	Disk      string    `json:"disk"` // its identity
	Kernel    string    `json:"kernel"`
	InFlight  int64     `json:"bytes_in_flight"` // fewest with 97 % of the best bandwidth
	Bandwidth float64   `json:"bw_bytes"`
	Time      time.Time `json:"time"`
}

// Kinds of reasons why there is no tuning; match with errors.Is.
var (
	ErrNotTuned = errors.New("not tuned")
	ErrOutdated = errors.New("outdated")
)

// tuningFile holds a Tuning per disk.
const tuningFile = "disks.json"

// Bounds of what a tuning may say: below the first no disk is busy, at the second a guess delays a demand by 5 ms at 3 GB/s.
const (
	leastInFlight = 256 << 10
	mostInFlight  = 16 << 20
)

// Tune keeps the knee of a sweep in a folder, for the disk that was read, and returns it with the name of the file.
func Tune(dir string, r *Report) (Tuning, string, error) { return host{}.tune(dir, r) }

// Tuned returns what is known of the disk of a path; the error is of kind ErrNotTuned, ErrOutdated (another kernel or disk
// since) or ErrNoDisk.
func Tuned(dir, path string) (Tuning, error) { return host{}.tuned(dir, path) }

func (h host) tune(dir string, r *Report) (Tuning, string, error) {
	file := filepath.Join(dir, tuningFile)
	if r.Verdict == nil || !r.Verdict.Swept {
		return Tuning{}, file, fmt.Errorf("iotest: --tune: one size and depth shows no knee: give lists, or neither --bs nor --iodepth: %w", ErrOption)
	}
	_, d, err := h.place(r.Path)
	if err != nil {
		return Tuning{}, file, fmt.Errorf("iotest: --tune: %w", err)
	}
	t := Tuning{Disk: h.identity(d), Kernel: h.kernel(), InFlight: min(max(r.Verdict.Knee.InFlight, leastInFlight), mostInFlight), Bandwidth: r.Verdict.Knee.Bandwidth, Time: time.Now().UTC()}
	all, err := readTunings(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		all = nil // what cannot be read is replaced
	}
	if all == nil {
		all = map[string]Tuning{}
	}
	all[d.name] = t
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return t, file, fmt.Errorf("iotest: --tune: %w", err)
	}
	if err := os.WriteFile(file+".new", append(b, '\n'), 0o644); err != nil {
		return t, file, fmt.Errorf("iotest: --tune: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return t, file, fmt.Errorf("iotest: --tune: %w", err)
	}
	return t, file, nil
}

func (h host) tuned(dir, path string) (Tuning, error) {
	_, d, err := h.place(path)
	if err != nil {
		return Tuning{}, err
	}
	file := filepath.Join(dir, tuningFile)
	all, err := readTunings(file)
	t, ok := all[d.name]
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !ok:
		return t, fmt.Errorf("iotest: %s: %w", d.name, ErrNotTuned)
	case err != nil:
		return t, fmt.Errorf("iotest: %s: %w: %w", file, err, ErrNotTuned)
	case t.Kernel != h.kernel():
		return t, fmt.Errorf("iotest: %s: measured with Linux %s, this is %s: %w", d.name, t.Kernel, h.kernel(), ErrOutdated)
	case t.Disk != h.identity(d):
		return t, fmt.Errorf("iotest: %s: measured on %q, this is %q: %w", d.name, t.Disk, h.identity(d), ErrOutdated)
	case t.InFlight < leastInFlight || t.InFlight > mostInFlight:
		return t, fmt.Errorf("iotest: %s: says %d bytes in flight, possible are %d to %d: %w", file, t.InFlight, leastInFlight, mostInFlight, ErrNotTuned)
	}
	return t, nil
}

func readTunings(file string) (map[string]Tuning, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > 1<<20 {
		return nil, fmt.Errorf("has %d bytes, more than any list of disks", info.Size())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all map[string]Tuning
	return all, json.Unmarshal(b, &all)
}
