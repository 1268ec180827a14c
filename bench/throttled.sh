#!/bin/sh
# Runs a command whose reads from a file's disk are throttled by a cgroup (v1 blkio or v2 io): the slow disk that one does not have.
#
#     bench/throttled.sh FILE BYTES_PER_SECOND COMMAND...
#
# Needs root. FILE is any file on the disk, the model for instance; only reads with O_DIRECT and misses of the page cache count.
set -eu
file=$1 bps=$2
shift 2
device=$(findmnt -no MAJ:MIN -T "$file" | tr -d ' ')
[ -e "/sys/dev/block/$device/partition" ] && device=$(cat "/sys/dev/block/$device/../dev") # the limit is the whole disk's
if [ -d /sys/fs/cgroup/blkio ]; then
	group=/sys/fs/cgroup/blkio/epq-throttled-$$
	mkdir "$group"
	echo "$device $bps" >"$group/blkio.throttle.read_bps_device"
elif grep -qw io /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
	group=/sys/fs/cgroup/epq-throttled-$$
	mkdir "$group"
	echo "$device rbps=$bps" >"$group/io.max"
else
	echo "throttled.sh: no cgroup controller that throttles: mount blkio (v1), or hand io down (v2)" >&2
	exit 1
fi
trap 'rmdir "$group"' EXIT
sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"
