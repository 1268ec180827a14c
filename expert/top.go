package expert

import "math"

// Top stores the indices of the largest finite scores in ids, best first, the lower index before an equal one, and returns
// how many there are: at most len(ids).
func Top(ids []int32, scores []float32) (n int) {
	if len(ids) == 0 {
		return 0
	}
	for i, v := range scores {
		if !(v >= -math.MaxFloat32 && v <= math.MaxFloat32) || n == len(ids) && v <= scores[ids[n-1]] {
			continue
		}
		if n < len(ids) {
			n++
		}
		j := n - 1
		for ; j > 0 && v > scores[ids[j-1]]; j-- {
			ids[j] = ids[j-1]
		}
		ids[j] = int32(i)
	}
	return n
}
