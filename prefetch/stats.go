package prefetch

import "time"

// Stats count since New.
type Stats struct {
	Mode      string
	Predictor string
	Depth     int           // layers looked ahead; 0: nothing is guessed
	Reason    string        // why this depth
	Time      time.Duration // spent on guessing
	Layers    []LayerStats  // per MoE layer
}

// LayerStats count, for the uses of one layer that something was named for.
type LayerStats struct {
	Routed int64 // experts used
	Named  int64 // of these, named by the list that was made last: as many names as the layer uses experts
	Recall [kinds]Recall
}

// Recall is how much of what a layer used a list named: one layer ahead, two layers ahead, beyond the token's end.
type Recall struct {
	Routed int64
	First  int64 // among its first names, as many as the layer uses experts
	All    int64 // among all its names, twice as many
}

func (r *Recall) add(routed, first, all int) {
	r.Routed += int64(routed)
	r.First += int64(first)
	r.All += int64(all)
}

// Share returns the two recalls, 0 where nothing was routed.
func (r Recall) Share() (first, all float64) {
	if r.Routed == 0 {
		return 0, 0
	}
	return float64(r.First) / float64(r.Routed), float64(r.All) / float64(r.Routed)
}

// Recall is named / routed over all layers, 0 if nothing was.
func (s Stats) Recall() float64 {
	var routed, named int64
	for _, l := range s.Layers {
		routed += l.Routed
		named += l.Named
	}
	if routed == 0 {
		return 0
	}
	return float64(named) / float64(routed)
}

// Sub returns what was counted since an earlier reading; depth and reason stay those of now.
func (s Stats) Sub(earlier Stats) Stats {
	s.Time -= earlier.Time
	for i := range min(len(s.Layers), len(earlier.Layers)) {
		l, e := &s.Layers[i], &earlier.Layers[i]
		l.Routed -= e.Routed
		l.Named -= e.Named
		for k := range l.Recall {
			l.Recall[k].Routed -= e.Recall[k].Routed
			l.Recall[k].First -= e.Recall[k].First
			l.Recall[k].All -= e.Recall[k].All
		}
	}
	return s
}
