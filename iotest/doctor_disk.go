package iotest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// slowKinds are file systems whose files lie on no disk of this machine, or behind a program.
var slowKinds = map[string]string{
	"nfs": "network", "nfs4": "network", "cifs": "network", "smb3": "network", "ceph": "network", "glusterfs": "network", "lustre": "network", "afs": "network",
	"9p": "host's", "virtiofs": "host's", "vboxsf": "host's", "overlay": "overlay", "aufs": "overlay", "squashfs": "compressed", "erofs": "compressed",
}

// Limits of a queue below which requests of experts are cut in pieces, and above which a page fault reads too much.
const (
	smallRequest = 512  // KiB, about a slice of an expert
	fewSegments  = 128  // of 4 KiB pages: half a MiB
	largeReadKiB = 1024 // read-ahead
	smallExtent  = 4 << 20
	someExtents  = 16
)

func (d *doctor) examinePaths() {
	var files []string
	for _, p := range d.opt.Paths {
		files = append(files, d.try.shards(p)...)
	}
	var disks []string
	for _, f := range files {
		m, disk, err := d.place(f)
		if err != nil && m.at == "" {
			d.find(Warning, "file", err.Error(), "nothing can be said about its place", "check the path")
			continue
		}
		d.fact("file", "%s: %s on %s (%s)", f, m.kind, m.at, m.source)
		d.examineMount(f, m)
		d.examineDirect(f)
		d.examineExtents(f)
		if err != nil {
			d.fact("disk", "%v", err)
			continue
		}
		if !slices.Contains(disks, disk.device) {
			disks = append(disks, disk.device)
			d.examineDisk(disk, m)
			d.examineTuning(f, disk)
		}
	}
	if len(disks) > 1 {
		d.find(Note, "model", fmt.Sprintf("%d files on %d disks", len(files), len(disks)), "experts come at the speed of the disk that each is on", "put all shards on the fastest one")
	}
}

func (d *doctor) examineMount(f string, m mount) {
	kind := slowKinds[m.kind]
	if kind == "" && strings.HasPrefix(m.kind, "fuse") {
		kind = "FUSE"
	}
	switch {
	case kind == "network" || kind == "FUSE" || kind == "host's":
		d.find(Bad, "file system", fmt.Sprintf("%s is on %s (%s)", f, m.kind, m.source), "every expert comes through a "+kind+" file system: little bandwidth, much latency", "copy the model to a local disk with ext4 or xfs")
	case kind != "":
		d.find(Warning, "file system", fmt.Sprintf("%s is on %s", f, m.kind), "reads pass one more layer ("+kind+"), which may refuse O_DIRECT", "mount a folder of a local disk into the container (docker run -v)")
	case m.kind == "tmpfs" || m.kind == "ramfs":
		d.find(Bad, "file system", f+" is on "+m.kind, "the whole file is in memory and counts as used", "put the model on a disk")
	case m.kind == "btrfs" && strings.Contains(m.options, "compress"):
		d.find(Warning, "file system", f+" is on btrfs with compression", "reads go through the page cache and are decompressed: a third of the speed, many times the CPU", "ext4 or xfs, or chattr +C on the folder before copying")
	case m.kind == "zfs" || m.kind == "bcachefs":
		d.find(Note, "file system", f+" is on "+m.kind, "reads may go through its own cache instead of past it", "set primarycache=metadata and recordsize=1M, or use ext4 or xfs")
	}
}

func (d *doctor) examineDirect(f string) {
	align, lost, err := d.try.direct(f)
	if err != nil {
		d.find(Warning, "file", fmt.Sprintf("%v", err), "it cannot be read", "check the path and its permissions")
		return
	}
	d.fact("O_DIRECT", "%s: reads in multiples of %d bytes", filepath.Base(f), align)
	for _, l := range lost {
		d.find(Bad, l.What, l.Reason, "experts are read through the page cache, or not from a disk", l.Remedy)
	}
}

func (d *doctor) examineExtents(f string) {
	n, bytes, err := d.try.extent(f)
	if err != nil {
		d.fact("extents", "%s: not known (%s)", filepath.Base(f), errName(err))
		return
	}
	d.fact("extents", "%s: %d, %s on average", filepath.Base(f), n, sizeWord(bytes/int64(max(n, 1))))
	if n > someExtents && bytes/int64(n) < smallExtent {
		d.find(Note, "fragments", fmt.Sprintf("%s lies in %d pieces of %s on average", f, n, sizeWord(bytes/int64(n))), "a slice of an expert may be cut into several requests", "copy the file on a disk with free space, or defragment it (e4defrag, xfs_fsr)")
	}
}

func (d *doctor) examineDisk(k disk, m mount) {
	q := k.dir + "/queue/"
	d.fact("disk", "%s (%s): %s", k.name, k.device, d.identity(k))
	for _, f := range []string{"max_sectors_kb", "max_segments", "nr_requests", "read_ahead_kb", "scheduler", "rotational", "logical_block_size", "physical_block_size"} {
		d.fact(k.name+" "+f, "%s", orNone(d.text(q+f)))
	}
	for _, part := range d.chain(k) {
		if d.text(part.dir+"/queue/rotational") == "1" && !strings.HasPrefix(part.name, "vd") && !strings.HasPrefix(part.name, "loop") {
			d.find(Bad, "disk", part.name+" is a rotating disk", "a random expert takes ten milliseconds: a token takes seconds", "put the model on an SSD")
		}
		if strings.Contains(part.dir, "/usb") || d.text(part.dir+"/removable") == "1" {
			d.find(Warning, "disk", part.name+" is removable or behind USB", "little bandwidth and few requests at once; pulled out, reads fail", "put the model on an internal NVMe or SATA SSD")
		}
		if strings.HasPrefix(part.name, "loop") {
			d.find(Warning, "disk", part.name+" is a loop device", "every read passes another file system, mostly through the page cache", "losetup --direct-io=on, or a disk of its own")
		}
		if strings.HasPrefix(d.text(part.dir+"/dm/uuid"), "CRYPT-") {
			d.find(Note, "disk", part.name+" is encrypted (dm-crypt)", "decrypting takes about a core per 2 to 3 GB/s", "keep the model, which is no secret, on a volume that is not encrypted")
		}
	}
	if n, ok := d.number(q + "max_sectors_kb"); ok && n < smallRequest {
		d.find(Note, "max_sectors_kb", fmt.Sprintf("%d (%s)", n, k.name), "slices of experts are cut into several requests",
			fmt.Sprintf("echo %s > %smax_sectors_kb", orNone(d.text(q+"max_hw_sectors_kb")), "/sys/block/"+k.name+"/queue/"))
	}
	if n, ok := d.number(q + "max_segments"); ok && n < fewSegments {
		d.find(Note, "max_segments", fmt.Sprintf("%d (%s)", n, k.name), "without huge pages a request holds only that many pages", "keep transparent huge pages on")
	}
	if n, ok := d.number(q + "read_ahead_kb"); ok && n > largeReadKiB {
		d.find(Note, "read_ahead_kb", fmt.Sprintf("%d (%s)", n, k.name), "a page fault in mapped weights reads that much and pushes other pages out", fmt.Sprintf("echo 128 > /sys/block/%s/queue/read_ahead_kb", k.name))
	}
	if strings.Contains(d.text(q+"scheduler"), "[bfq]") {
		d.find(Note, "scheduler", "bfq ("+k.name+")", "costs CPU per request and lets others go first", fmt.Sprintf("echo none > /sys/block/%s/queue/scheduler", k.name))
	}
	d.examineThrottle(k)
}

// chain is a disk and all below it: of volume groups, encryption and arrays.
func (d *doctor) chain(k disk) []disk {
	all := []disk{k}
	for i := 0; i < len(all) && len(all) < 64; i++ {
		for _, s := range d.list(all[i].dir + "/slaves") {
			if below, err := d.diskOf(mount{device: "0:0", source: "/dev/" + s}); err == nil {
				all = append(all, below)
			}
		}
	}
	return all
}

// examineThrottle looks for limits that control groups put on a disk.
func (d *doctor) examineThrottle(k disk) {
	v2, v1 := d.groups("blkio")
	for _, g := range v2 {
		for line := range strings.Lines(d.text(g + "/io.max")) {
			w := strings.Fields(line)
			if len(w) == 0 || w[0] != k.device {
				continue
			}
			for _, limit := range w[1:] {
				if name, value, _ := strings.Cut(limit, "="); (name == "rbps" || name == "riops") && value != "max" {
					d.throttled(k, g+"/io.max", name, value)
				}
			}
		}
	}
	for _, g := range v1 {
		for _, name := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.read_iops_device"} {
			for line := range strings.Lines(d.text(g + "/" + name)) {
				if w := strings.Fields(line); len(w) == 2 && w[0] == k.device {
					d.throttled(k, g, name, w[1])
				}
			}
		}
	}
}

func (d *doctor) throttled(k disk, where, name, value string) {
	d.find(Bad, "I/O limit", fmt.Sprintf("%s is %s for %s (%s)", name, value, k.name, where), "the disk is throttled for this group: experts come no faster, and in bursts", "lift it (systemd IOReadBandwidthMax=, docker run --device-read-bps), or run elsewhere")
}

func (d *doctor) examineTuning(f string, k disk) {
	if d.opt.Tuning == "" {
		return
	}
	t, err := d.tuned(d.opt.Tuning, f)
	if err != nil {
		d.fact("tuning", "%v", err)
		return
	}
	d.fact("tuning", "%s: %s in flight, %.2f GB/s, measured %s", k.name, sizeWord(t.InFlight), t.Bandwidth/1e9, t.Time.Format("2006-01-02"))
}
