package prefetch

import (
	"slices"

	"github.com/epq-uring/epq-uring/expert"
)

// Kinds of lists of a layer, the nearest first.
const (
	near   = iota // named one layer ahead, or from the embedding
	far           // two layers ahead
	beyond        // beyond the end of the token before
	kinds
)

// list is what was named for the next use of a layer, best first.
type list struct {
	n       int
	ids     []int32
	bucket  []uint8 // what the calibration knows the expert by
	there   []bool  // needed no read when it was named
	sure    bool    // no calibration: it is the truth
	experts int     // of the layer
}

func newList(most, experts int) list {
	return list{experts: experts, ids: make([]int32, most), bucket: make([]uint8, most), there: make([]bool, most)}
}

// predictor fills the lists of up to depth layers after layer. For the layers of the next token it can fill no more than
// the first one's list of kind beyond.
type predictor interface {
	name(layer int, ids []int32, hidden []float32, depth int, lists [][kinds]list)
}

// Buckets of a list: how far a score is above or below the border of selection, and how often the expert followed.
const (
	marginBuckets  = 16
	historyBuckets = 8
	buckets        = marginBuckets * historyBuckets
)

// router names what the next layers' own routers select for the hidden state as it is now: the experts of this layer and
// the mixers between are missing from it. With a history it also knows what followed earlier, and names experts beyond
// the token's end.
type router struct {
	score  Score
	scores [][]float32
	views  [][]float32 // of scores, one per layer scored
	learn  *history    // may be nil
}

func newRouter(score Score, experts int, learn *history) *router {
	r := &router{score: score, learn: learn, scores: make([][]float32, MaxAhead), views: make([][]float32, MaxAhead)}
	for i := range r.scores {
		r.scores[i] = make([]float32, experts)
	}
	return r
}

func (r *router) name(layer int, ids []int32, hidden []float32, depth int, lists [][kinds]list) {
	n := min(depth, len(lists)-1-layer)
	if r.learn != nil && layer >= 0 {
		r.learn.follow(layer, ids)
		if n == 0 {
			r.learn.fill(&lists[0][beyond])
		}
	}
	if n == 0 {
		return
	}
	for i := range n {
		r.views[i] = r.scores[i][:r.experts(lists, layer+1+i)]
	}
	r.score(layer+1, hidden, r.views[:n])
	for i := range n {
		l := &lists[layer+1+i][i]
		fillByScore(l, r.views[i])
		if r.learn != nil && i == 0 && layer >= 0 {
			for j, id := range l.ids[:l.n] {
				l.bucket[j] += r.learn.bucket(id)
			}
		}
	}
}

// experts is how many a layer has.
func (r *router) experts(lists [][kinds]list, layer int) int { return lists[layer][near].experts }

// fillByScore ranks experts by score and sorts them into buckets of their distance from the border between what would be
// selected and what would not, relative to the spread of the list.
func fillByScore(l *list, scores []float32) {
	l.n = expert.Top(l.ids, scores)
	if l.n == 0 {
		return
	}
	used := len(l.ids) / 2
	inside, outside := scores[l.ids[min(used, l.n)-1]], scores[l.ids[min(used, l.n-1)]]
	border, spread := (inside+outside)/2, scores[l.ids[0]]-scores[l.ids[l.n-1]]
	for i, id := range l.ids[:l.n] {
		margin := float32(0)
		if spread > 0 {
			margin = (scores[id] - border) / spread
		}
		b := int((margin + 1) * marginBuckets / 2)
		l.bucket[i] = uint8(min(max(b, 0), marginBuckets-1) * historyBuckets)
	}
}

// oracle names what a recorded run used next, as long as this one takes the same way.
type oracle struct {
	future []Use
	at     int // uses that began
	lost   bool
}

// began follows the run. Once it took another way nothing is known any more.
func (o *oracle) began(layer int, ids []int32) {
	if o.lost = o.lost || o.at == len(o.future) || int(o.future[o.at].Layer) != layer || !slices.Equal(o.future[o.at].IDs, ids); !o.lost {
		o.at++
	}
}

func (o *oracle) name(layer int, _ []int32, _ []float32, depth int, lists [][kinds]list) {
	for i := range depth {
		if o.lost || o.at+i >= len(o.future) {
			return
		}
		u, kind := &o.future[o.at+i], i
		if int(u.Layer) != layer+1+i {
			if kind = beyond; i > 0 || u.Layer != 0 {
				return
			}
		}
		l := &lists[u.Layer][kind]
		l.n, l.sure = copy(l.ids, u.IDs), true
	}
}

// marks is a set of experts of one layer, emptied at no cost.
type marks struct {
	round uint32
	seen  []uint32
}

func newMarks(experts int) marks { return marks{seen: make([]uint32, experts)} }

func (m *marks) set(ids []int32) {
	if m.round++; m.round == 0 {
		clear(m.seen)
		m.round = 1
	}
	for _, id := range ids {
		m.seen[id] = m.round
	}
}

func (m *marks) has(id int32) bool { return m.seen[id] == m.round }
