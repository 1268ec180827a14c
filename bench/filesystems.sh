#!/bin/sh
# iotest on tmpfs, overlayfs, and images of ext4, xfs and btrfs on loop devices, with sectors of 512 and of 4096 bytes; as an ordinary user with
# 8 MiB of lockable memory; and throttled to 200 MB/s by a cgroup (v1 blkio or v2 io). Needs root. Each line: what, GB/s, verified blocks and
# wrong ones, or the line that says why not.
#
#     bench/filesystems.sh bin/epq-uring SCRATCH_FOLDER
set -u
bin=$(realpath "$1") dir=$(realpath "$2")/iotest-fs
mkdir -p "$dir/mnt" && cd "$dir" || exit 1
loop=
clean() {
	cd /
	umount "$dir/mnt" 2>/dev/null
	[ -n "$loop" ] && losetup -d "$loop" 2>/dev/null
	rm -rf "$dir"
}
trap clean EXIT
trap 'exit 143' INT TERM

# show NAME FOLDER [WRAPPER...]: write 64 MiB of patterns, read and check them with both backends
show() {
	name=$1 at=$2
	shift 2
	if "$@" "$bin" iotest "$at" --create --size 64m --verify --runtime 1 --backend all --json >out 2>err; then
		python3 - "$name" <<'P'
import json, sys
for j in json.load(open("out"))["jobs"]:
    v = j["verify"]
    print("%-28s %-6s %6.3f GB/s, %d blocks verified, %d wrong, direct %s" % (sys.argv[1], j["job options"]["backend"], j["read"]["bw_bytes"] / 1e9, v["blocks"], v["errors"], j["job options"]["direct"]))
P
		sed "s/^/    /" err
	else
		printf '%-28s refused: %s\n' "$name" "$(tail -1 err)"
	fi
}

show "the folder itself" "$dir"
chmod 777 "$dir"
show "user, memlock 8 MiB" "$dir" prlimit --memlock=8388608:8388608 setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all
mount -t tmpfs none mnt && show tmpfs mnt && umount mnt
mkdir -p lower upper work
mount -t overlay overlay -o "lowerdir=lower,upperdir=upper,workdir=work" mnt && show overlayfs mnt && umount mnt
for fs in ext4 xfs btrfs; do
	command -v mkfs.$fs >/dev/null || { echo "mkfs.$fs is not installed"; continue; }
	for sector in 512 4096; do
		rm -f image && truncate -s 400M image
		loop=$(losetup --find --show --sector-size $sector --direct-io=on image 2>/dev/null || losetup --find --show --sector-size $sector image) || continue
		if mkfs.$fs "$loop" >/dev/null 2>mkfs && mount "$loop" mnt 2>>mkfs; then
			show "$fs, $sector-byte sectors" mnt
			umount mnt
		else
			echo "$fs, $sector-byte sectors: $(tail -1 mkfs)"
		fi
		losetup -d "$loop"
		loop=
	done
done

# throttled: the whole disk of the folder, for a group of its own
disk=$(lsblk -no PKNAME "$(df --output=source "$dir" | tail -1)" 2>/dev/null | head -1)
[ -n "$disk" ] || disk=$(basename "$(df --output=source "$dir" | tail -1)")
number=$(cat "/sys/class/block/$disk/dev")
if [ -d /sys/fs/cgroup/blkio ]; then
	group=/sys/fs/cgroup/blkio/iotest-$$
	mkdir "$group" && echo "$number 209715200" >"$group/blkio.throttle.read_bps_device"
elif grep -qw io /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
	group=/sys/fs/cgroup/iotest-$$
	mkdir "$group" && echo "$number rbps=209715200" >"$group/io.max"
else
	echo "no cgroup controller that throttles"
	exit 0
fi
"$bin" iotest "$dir/throttled" --create --keep --size 256m --runtime 0.1 >/dev/null
sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$bin" iotest "$dir/throttled" --bs 256k --iodepth 8 --runtime 6 >out 2>err
echo "throttled to 0.210 GB/s:"
sed -n 2p out
grep limits out
sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$bin" doctor "$dir/throttled" 2>/dev/null | grep -A2 'I/O limit'
rmdir "$group"
