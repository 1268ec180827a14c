package prefetch

import "github.com/epq-uring/epq-uring/expert"

// followers is how many successors of an expert are kept: with them a model of 10,000 experts takes 0.7 MB.
const followers = 16

// rowWords: how often the expert was used, and its followers as count<<16 | expert.
const rowWords = 1 + followers

// rowFull is when a row is halved: what came that many uses ago counts half.
const rowFull = 128

// HistoryWords is how much memory History and Hybrid learn in.
func HistoryWords(cat *expert.Catalog) int { return cat.Experts() * rowWords }

// history learns, for every expert, which experts of the next layer are used after it; the first layer follows the last
// of the token before.
type history struct {
	cat   *expert.Catalog
	words []uint32

	layer int     // of the last use, -1: unknown
	last  []int32 // its experts

	sum     []float32 // per expert of the next layer: mean of the shares in which it followed
	touched []int32
}

func newHistory(cat *expert.Catalog, words []uint32) *history {
	most := 0
	for _, l := range cat.Layers {
		most = max(most, l.Experts)
	}
	return &history{cat: cat, words: words, layer: -1, last: make([]int32, 0, most), sum: make([]float32, most), touched: make([]int32, 0, most)}
}

func (h *history) row(layer int, id int32) []uint32 {
	at := h.cat.Index(expert.Key{Layer: int32(layer), Expert: id}) * rowWords
	return h.words[at : at+rowWords]
}

// began learns from a use.
func (h *history) began(layer int, ids []int32, single bool) {
	if !single {
		h.layer = -1
		return
	}
	if h.layer >= 0 && (h.layer+1)%len(h.cat.Layers) == layer {
		for _, a := range h.last {
			row := h.row(h.layer, a)
			row[0]++
			for _, b := range ids {
				count(row[1:], uint32(b))
			}
			if row[0] >= rowFull {
				halve(row)
			}
		}
	}
	h.layer, h.last = layer, append(h.last[:0], ids...)
}

// count raises a follower's count. Where it has none, the rarest gives way, one count at a time: what comes often stays.
func count(row []uint32, id uint32) {
	rarest := 0
	for i, w := range row {
		if w>>16 > 0 && w&0xffff == id {
			row[i] += 1 << 16
			return
		}
		if w>>16 < row[rarest]>>16 {
			rarest = i
		}
	}
	if row[rarest]>>16 <= 1 {
		row[rarest] = 1<<16 | id
		return
	}
	row[rarest] -= 1 << 16
}

func halve(row []uint32) {
	row[0] /= 2
	for i, w := range row[1:] {
		row[1+i] = w>>17<<16 | w&0xffff
	}
}

// follow works out how likely each expert of the next layer follows the experts ids of layer.
func (h *history) follow(layer int, ids []int32) {
	for _, b := range h.touched {
		h.sum[b] = 0
	}
	h.touched = h.touched[:0]
	experts := uint32(h.cat.Layers[(layer+1)%len(h.cat.Layers)].Experts)
	for _, a := range ids {
		row := h.row(layer, a)
		if row[0] == 0 {
			continue
		}
		weight := 1 / (float32(row[0]) * float32(len(ids)))
		for _, w := range row[1:] {
			b := w & 0xffff
			if w>>16 == 0 || b >= experts { // a kept history is only numbers
				continue
			}
			if h.sum[b] == 0 {
				h.touched = append(h.touched, int32(b))
			}
			h.sum[b] += float32(w>>16) * weight
		}
	}
}

// bucketEdges divide mean shares; a layer that uses 8 of 256 has 0.03 on average.
var bucketEdges = [historyBuckets - 1]float32{0.01, 0.03, 0.06, 0.12, 0.2, 0.35, 0.55}

// bucket sorts an expert by its share, after follow.
func (h *history) bucket(id int32) uint8 {
	b := uint8(0)
	for _, edge := range bucketEdges {
		if h.sum[id] > edge {
			b++
		}
	}
	return b
}

// fill lists the experts that follow most often, after follow.
func (h *history) fill(l *list) {
	l.n = 0
	for _, id := range h.touched {
		v := h.sum[id]
		if l.n == len(l.ids) && v <= h.sum[l.ids[l.n-1]] {
			continue
		}
		if l.n < len(l.ids) {
			l.n++
		}
		j := l.n - 1
		for ; j > 0 && v > h.sum[l.ids[j-1]]; j-- {
			l.ids[j] = l.ids[j-1]
		}
		l.ids[j] = id
	}
	for i, id := range l.ids[:l.n] {
		l.bucket[i] = h.bucket(id)
	}
}

// name implements predictor: one layer ahead, and over the token's end.
func (h *history) name(layer int, ids []int32, _ []float32, _ int, lists [][kinds]list) {
	if layer < 0 {
		return
	}
	h.follow(layer, ids)
	if layer+1 < len(lists) {
		h.fill(&lists[layer+1][near])
	} else {
		h.fill(&lists[0][beyond])
	}
}
