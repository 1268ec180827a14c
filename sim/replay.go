package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
)

// The two bounds, beside the pager's policies.
const (
	// Belady knows the future: no policy that reads on demand hits more.
	Belady = "belady"
	// Compulsory reads every used expert once: what is left with endless memory.
	Compulsory = "compulsory"
)

// Policies returns every name that Simulate knows: the pager's policies, then the bounds.
func Policies() []string { return append(pager.Policies(), Belady, Compulsory) }

// Cell is the outcome of one policy under one budget.
type Cell struct {
	Policy      string  `json:"policy"`
	RAM         int64   `json:"ram_bytes"`
	HitRate     float64 `json:"hit_rate"`      // of all uses, each expert once per layer and batch
	HitRateCold float64 `json:"hit_rate_cold"` // the first use of every expert left out
	MiBPerToken float64 `json:"mib_per_token"`
	Evictions   int64   `json:"evictions"`
}

// ParsePolicies splits a comma-separated list; "all" stands for all of them. errors.Is finds pager.ErrPolicy.
func ParsePolicies(list string) ([]string, error) {
	if list == "all" {
		return Policies(), nil
	}
	names := strings.Split(list, ",")
	for i, name := range names {
		name = strings.TrimSpace(name)
		names[i] = name
		if !slices.Contains(Policies(), name) {
			return nil, fmt.Errorf("sim: %w %q: known are all, %s", pager.ErrPolicy, name, strings.Join(Policies(), ", "))
		}
	}
	return names, nil
}

// Simulate replays t for every budget (bytes, as in a run: other terms included) and policy. A budget that is too small
// is an *expert.TooSmall.
func Simulate(t *Trace, budgets []int64, policies []string, opt pager.Options) ([]Cell, error) {
	var cells []Cell
	terms := []expert.Term{{Name: "other", Bytes: t.Other, Kind: expert.Anonymous, Counted: true}}
	for _, ram := range budgets {
		plan, err := expert.NewPlan(ram, "--ram", terms, t.Catalog)
		if err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
		for _, name := range policies {
			c, err := t.cell(name, plan.Slots, opt)
			if err != nil {
				return nil, err
			}
			c.Policy, c.RAM = name, ram
			cells = append(cells, c)
		}
	}
	return cells, nil
}

func (t *Trace) cell(policy string, slots []int, opt pager.Options) (Cell, error) {
	switch policy {
	case Belady:
		return t.bound(slots), nil
	case Compulsory:
		all := make([]int, len(slots))
		for i, k := range t.Catalog.Classes {
			all[i] = k.Experts
		}
		return t.bound(all), nil
	}
	opt.Policy = policy
	s, err := t.Replay(slots, opt)
	if err != nil {
		return Cell{}, err
	}
	return Cell{HitRate: s.HitRate(), HitRateCold: s.WarmHitRate(), MiBPerToken: t.perToken(s.BytesRead), Evictions: s.Evictions}, nil
}

// Replay drives the pager itself, without memory and disk, and returns its counters: those of the recorded run, to the
// last read, when slots (per class of t.Catalog) and opt are the run's and nothing was read on a guess.
func (t *Trace) Replay(slots []int, opt pager.Options) (pager.Stats, error) {
	p, err := pager.NewReplay(t.Catalog, slots, t.Sizes, opt)
	if err != nil {
		return pager.Stats{}, fmt.Errorf("sim: %w", err)
	}
	for i, u := range t.uses {
		if u.layer < 0 {
			p.Tick()
			continue
		}
		if err := p.Use(int(u.layer), t.ids[u.from:u.to], 0, func([]expert.Ready) error { return nil }); err != nil {
			return pager.Stats{}, fmt.Errorf("sim: trace: record %d: %w", i, err)
		}
	}
	return p.Stats(), nil
}

func (t *Trace) perToken(bytes int64) float64 {
	return float64(bytes) / (1 << 20) / float64(max(1, t.Tokens))
}

// readBytes is what one expert of a layer costs to read, widening included as far as the file goes.
func (t *Trace) readBytes(k expert.Key) int64 {
	sum := int64(0)
	for i := range t.Catalog.Layers[k.Layer].Parts {
		p := t.Catalog.Piece(k, i)
		sum += min(int64(p.ReadLength), t.Sizes[p.Shard]-p.ReadOffset)
	}
	return sum
}
