package mem

import (
	"fmt"
	"strconv"
	"strings"
)

// Image is what a program takes by being loaded.
type Image struct {
	Data int64 // private writable segments with their zeros, touched or not: RLIMIT_DATA counts them
	Code int64 // executable segments, which are pages of files
}

// ReadImage reads the segments of the program and its libraries from /proc/self/maps (proc(5)).
func ReadImage() (Image, error) { return readImage("/") }

func readImage(root string) (Image, error) {
	text, err := readText(root, "/proc/self/maps")
	if err != nil {
		return Image{}, fmt.Errorf("mem: %w", err)
	}
	var m Image
	after := uint64(0) // end of a file's writable segment: its zeros follow as a mapping without a name
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 5 {
			continue
		}
		low, high, ok := addresses(w[0])
		if !ok {
			return Image{}, fmt.Errorf("mem: /proc/self/maps: no addresses in %q: %w", strings.TrimSpace(line), ErrSize)
		}
		file := len(w) > 5 && strings.HasPrefix(w[5], "/")
		switch {
		case w[1] == "rw-p" && (file || len(w) == 5 && low == after):
			m.Data += int64(high - low)
			after = high
		case w[1] == "r-xp" && file:
			m.Code += int64(high - low)
		}
	}
	return m, nil
}

// addresses reads "LOW-HIGH" in hexadecimal.
func addresses(s string) (low, high uint64, ok bool) {
	a, z, _ := strings.Cut(s, "-")
	low, err := strconv.ParseUint(a, 16, 64)
	high, err2 := strconv.ParseUint(z, 16, 64)
	return low, high, err == nil && err2 == nil && low <= high
}
