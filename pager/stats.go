package pager

import "time"

// Stats are counters since New. An expert counts once per Use it is named in: as a hit when it was complete in the
// arena, as joined when it was on its way, as a miss when the Use started its read.
type Stats struct {
	Hits   int64
	Joined int64
	Misses int64
	// Of these, the first use of an expert since New.
	ColdHits   int64
	ColdJoined int64
	ColdMisses int64

	Reads      int64         // finished by the device, failed ones included
	BytesRead  int64         // that arrived, widening included
	Retries    int64         // reads repeated after an error
	Failures   int64         // experts given up after the last try
	Evictions  int64         // of complete experts
	WaitTime   time.Duration // Use and Down waited for the device
	Guessed    int64         // experts that Prefetch began to read
	Useful     int64         // of these, used before they left
	Wasted     int64         // of these, gone without a use: evicted, dropped or failed
	WastedRead int64         // bytes read for the wasted
}

// HitRate returns hits / (hits + joined + misses), 0 if there was no use.
func (s Stats) HitRate() float64 { return share(s.Hits, s.Hits+s.Joined+s.Misses) }

// WarmHitRate is HitRate without the first use of every expert, which no cache can have.
func (s Stats) WarmHitRate() float64 {
	hits := s.Hits - s.ColdHits
	return share(hits, hits+s.Joined-s.ColdJoined+s.Misses-s.ColdMisses)
}

func share(part, all int64) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

// Sub returns what was counted since an earlier reading.
func (s Stats) Sub(earlier Stats) Stats {
	s.Hits -= earlier.Hits
	s.Joined -= earlier.Joined
	s.Misses -= earlier.Misses
	s.ColdHits -= earlier.ColdHits
	s.ColdJoined -= earlier.ColdJoined
	s.ColdMisses -= earlier.ColdMisses
	s.Reads -= earlier.Reads
	s.BytesRead -= earlier.BytesRead
	s.Retries -= earlier.Retries
	s.Failures -= earlier.Failures
	s.Evictions -= earlier.Evictions
	s.WaitTime -= earlier.WaitTime
	s.Guessed -= earlier.Guessed
	s.Useful -= earlier.Useful
	s.Wasted -= earlier.Wasted
	s.WastedRead -= earlier.WastedRead
	return s
}
