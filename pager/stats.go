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

	Reads     int64         // finished by the device, failed ones included
	BytesRead int64         // that arrived, widening included
	Retries   int64         // reads repeated after an error
	Failures  int64         // experts given up after the last try
	Evictions int64         // of complete experts
	WaitTime  time.Duration // Use and Down waited for the device
	Warmed    int64         // experts that Warm began to read

	Guess      GuessStats // what Prefetch began to read
	Displaced  int64      // experts that a guess took the slot of
	AskedAgain int64      // of these, missed within longTokens
}

// GuessStats count experts that Prefetch began to read. Issued = Useful + Late + Wasted + Cancelled + Held.
type GuessStats struct {
	Issued      int64
	Useful      int64         // complete when they were used
	Late        int64         // used while still on their way
	Wasted      int64         // complete, and gone without a use
	Cancelled   int64         // given up before they were complete, or unreadable
	Held        int64         // neither used nor gone
	WastedBytes int64         // read for the wasted and the cancelled
	Lead        time.Duration // of all useful ones, from complete to used
}

// Precision returns useful / issued, 0 if none was.
func (g GuessStats) Precision() float64 { return share(g.Useful, g.Issued) }

func (g *GuessStats) add(o GuessStats) {
	g.Issued += o.Issued
	g.Useful += o.Useful
	g.Late += o.Late
	g.Wasted += o.Wasted
	g.Cancelled += o.Cancelled
	g.Held += o.Held
	g.WastedBytes += o.WastedBytes
	g.Lead += o.Lead
}

// Sub returns what was counted since an earlier reading; Held stays what is held now.
func (g GuessStats) Sub(earlier GuessStats) GuessStats {
	g.Issued -= earlier.Issued
	g.Useful -= earlier.Useful
	g.Late -= earlier.Late
	g.Wasted -= earlier.Wasted
	g.Cancelled -= earlier.Cancelled
	g.WastedBytes -= earlier.WastedBytes
	g.Lead -= earlier.Lead
	return g
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
	s.Warmed -= earlier.Warmed
	s.Guess = s.Guess.Sub(earlier.Guess)
	s.Displaced -= earlier.Displaced
	s.AskedAgain -= earlier.AskedAgain
	return s
}
