package iotest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// patternBytes is the size of a pattern: a file that iotest makes is a row of them. Little endian:
//
//	"epqblock"  offset in the file uint64  generation uint64  CRC32C of all but itself uint32  0 uint32  random bytes
//
// The offset finds reads that went astray, the generation those of older content, the sum torn ones and flipped bits.
const (
	patternBytes  = 4096
	patternHeader = 32
	patternMagic  = "epqblock"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writePattern fills b, patternBytes long, for an offset; its random bytes follow from offset and generation.
func writePattern(b []byte, offset int64, generation uint64) {
	copy(b, patternMagic)
	binary.LittleEndian.PutUint64(b[8:], uint64(offset))
	binary.LittleEndian.PutUint64(b[16:], generation)
	x := uint64(offset) + generation*0x9e3779b97f4a7c15
	for i := patternHeader; i < patternBytes; i += 8 { // SplitMix64: a disk that compresses shall gain nothing
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b[i:], z^z>>31)
	}
	binary.LittleEndian.PutUint64(b[24:], 0)
	binary.LittleEndian.PutUint32(b[24:], patternSum(b))
}

func patternSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:24], castagnoli), castagnoli, b[28:])
}

// Wrong is a pattern that is not what was written.
type Wrong struct {
	Offset int64  `json:"offset"`
	Why    string `json:"why"`
}

func (w Wrong) String() string { return fmt.Sprintf("block at offset %d %s", w.Offset, w.Why) }

// checkPattern says what is wrong with a pattern that was read from an offset, "" if nothing.
func checkPattern(b []byte, offset int64, generation uint64) string {
	if string(b[:8]) != patternMagic {
		return "holds no pattern: never read, or overwritten"
	}
	if got, want := patternSum(b), binary.LittleEndian.Uint32(b[24:]); got != want {
		return fmt.Sprintf("has checksum %08x, written was %08x: torn or damaged", got, want)
	}
	if at := binary.LittleEndian.Uint64(b[8:]); at != uint64(offset) {
		return fmt.Sprintf("holds the block of offset %d: misdirected", at)
	}
	if g := binary.LittleEndian.Uint64(b[16:]); g != generation {
		return fmt.Sprintf("is of generation %d, wanted %d: stale", g, generation)
	}
	return ""
}

// spoil makes sure that what an older read left is not taken for this one's.
func spoil(b []byte) {
	for ; len(b) >= patternBytes; b = b[patternBytes:] {
		clear(b[:8])
	}
}

// check looks at all patterns of a read.
func (t *tally) check(b []byte, offset int64, generation uint64) {
	for at := 0; at+patternBytes <= len(b); at += patternBytes {
		t.blocks++
		why := checkPattern(b[at:at+patternBytes], offset+int64(at), generation)
		if why == "" {
			continue
		}
		if t.errors++; len(t.wrong) < maxWrong {
			t.wrong = append(t.wrong, Wrong{offset + int64(at), why})
		}
	}
}
