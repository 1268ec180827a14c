package mem

import (
	"errors"
	"os"
	"testing"
)

func TestReadImage(t *testing.T) {
	maps := "" +
		"00400000-00500000 r--p 00000000 fe:00 1 /bin/x\n" +
		"00500000-00700000 r-xp 00100000 fe:00 1 /bin/x\n" +
		"00700000-00702000 rw-p 00300000 fe:00 1 /bin/x\n" +
		"00702000-00712000 rw-p 00000000 00:00 0 \n" + // the zeros of /bin/x
		"20000000-20021000 rw-p 00000000 00:00 0 [heap]\n" +
		"c000000000-c000400000 rw-p 00000000 00:00 0 \n" +
		"7f0000000000-7f0000001000 rw-p 00000000 fe:00 2 /lib/a name.so\n" +
		"7f0000001000-7f0000003000 r-xp 00000000 fe:00 2 /lib/a name.so\n" +
		"7f0000004000-7f0000005000 r--s 00000000 fe:00 3 /model\n" +
		"7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]\n" +
		"7ffd00022000-7ffd00024000 r-xp 00000000 00:00 0 [vdso]\n"
	m, err := readImage(writeTree(t, map[string]string{"/proc/self/maps": maps}))
	if want := (Image{Data: 0x2000 + 0x10000 + 0x1000, Code: 0x200000 + 0x2000}); err != nil || m != want {
		t.Errorf("%+v, %v, want %+v", m, err, want)
	}
	if _, err := readImage(writeTree(t, map[string]string{"/proc/self/maps": "a b c d e\n"})); !errors.Is(err, ErrSize) {
		t.Error(err)
	}
	if _, err := readImage(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if m, err := ReadImage(); err != nil || m.Data <= 0 || m.Code <= 0 {
		t.Errorf("%+v, %v", m, err)
	}
}
