package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// Process is the memory of this process in bytes, as the kernel counts it.
type Process struct {
	Anonymous     int64 // present anonymous pages
	PeakAnonymous int64 // largest Anonymous that any ReadProcess of this process saw: the kernel keeps no such peak
	RSS           int64 // present pages, those of mapped files too
	PeakRSS       int64 // kept by the kernel
	Swap          int64 // anonymous pages in swap
}

var peakAnonymous atomic.Int64

// ReadProcess reads /proc/self/status, and /proc/self/smaps_rollup (Linux 4.14), which is exact where the former lags by
// a few pages per CPU. It walks the page tables: microseconds with huge pages, milliseconds per GiB without.
func ReadProcess() (Process, error) {
	p, err := readProcess("/")
	if err != nil {
		return Process{}, err
	}
	for old := peakAnonymous.Load(); p.Anonymous > old && !peakAnonymous.CompareAndSwap(old, p.Anonymous); {
		old = peakAnonymous.Load()
	}
	p.PeakAnonymous = peakAnonymous.Load()
	return p, nil
}

// StatusOf is what /proc/PID/status tells of another process: cheap, without PeakAnonymous, and behind by a few pages.
func StatusOf(pid int) (Process, error) { return readStatus("/", strconv.Itoa(pid)) }

func readStatus(root, pid string) (Process, error) {
	status, err := readFields(root, "/proc/"+pid+"/status")
	if err != nil {
		return Process{}, fmt.Errorf("mem: %w", err)
	}
	return Process{Anonymous: status["RssAnon"], RSS: status["VmRSS"], PeakRSS: status["VmHWM"], Swap: status["VmSwap"]}, nil
}

func readProcess(root string) (Process, error) {
	p, err := readStatus(root, "self")
	if err != nil {
		return Process{}, err
	}
	if roll, err := readFields(root, "/proc/self/smaps_rollup"); err == nil {
		p.Anonymous, p.RSS, p.Swap = roll["Anonymous"], roll["Rss"], roll["Swap"]
		p.PeakRSS = max(p.PeakRSS, p.RSS)
	}
	return p, nil
}

// readFields reads lines "Name: 12 kB" (status, smaps_rollup, meminfo) into bytes, and "name 12" (memory.stat) as they
// are. Lines of another form are skipped.
func readFields(root, path string) (map[string]int64, error) {
	text, err := readText(root, path)
	if err != nil {
		return nil, err
	}
	fields := map[string]int64{}
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 2 {
			continue
		}
		n, err := strconv.ParseInt(w[1], 10, 64)
		if err != nil {
			continue
		}
		if len(w) == 3 && w[2] == "kB" {
			n <<= 10
		}
		fields[strings.TrimSuffix(w[0], ":")] = n
	}
	return fields, nil
}

// readText reads a small file below root without its last newline.
func readText(root, path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return string(bytes.TrimRight(b, "\n")), nil
}
