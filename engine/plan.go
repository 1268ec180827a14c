package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
)

// budget is how much memory the process may use, and what says so.
type budget struct {
	bytes    int64
	boundBy  string
	physical bool // counts page cache and the kernel's share; else what is mapped, as RLIMIT_DATA does
	minimal  bool // whatever the smallest working budget is
}

// budgets lists the limits on this process, the user's wish first. A wish is no limit for the kernel, so that the groups
// and RLIMIT_DATA stand beside it; the machine's free memory is only asked when nobody said a size.
func (e *Engine) budgets() ([]budget, error) {
	limits, err := mem.Limits("")
	auto := strings.EqualFold(e.opt.RAM, "auto")
	if err != nil && (auto || !errors.Is(err, mem.ErrNoLimit)) {
		return nil, err
	}
	return budgetsOf(e.opt.RAM, limits)
}

func budgetsOf(ram string, limits []mem.Limit) ([]budget, error) {
	var bs []budget
	below := ""
	auto := strings.EqualFold(ram, "auto")
	switch {
	case auto:
	case strings.EqualFold(ram, "min"):
		bs = append(bs, budget{boundBy: "flag (--ram min)", minimal: true})
		below = ", smaller than --ram min takes"
	default:
		n, err := ParseSize(ram)
		if err != nil {
			return nil, fmt.Errorf("engine: --ram: %w", err)
		}
		bs = append(bs, budget{bytes: n, boundBy: "flag (--ram)"})
		below = ", which leaves less than --ram " + ram
	}
	for _, l := range limits {
		if auto || l.By != "memory" {
			bs = append(bs, budget{bytes: l.Bytes, boundBy: l.By + " (" + l.Where + ")" + below, physical: l.By != "rlimit"})
		}
	}
	return bs, nil
}

// makePlan fixes the context, sizes the model and divides the budget.
func (e *Engine) makePlan() error {
	e.image = readImage()
	if err := e.orderDrafts(); err != nil {
		return err
	}
	bs, err := e.budgets()
	if err != nil {
		return err
	}
	longest := e.cfg.Context
	if !bs[0].minimal {
		longest = e.maxContext(bs)
	}
	context := min(cmp.Or(max(0, e.opt.Context), defaultContext), e.cfg.Context)
	if e.opt.Context < 0 && !bs[0].minimal {
		context = max(longest, min(contextStep, e.cfg.Context)) // the smallest says what is missing
	}
	p, n, err := e.planFor(bs, context)
	if err != nil {
		return err
	}
	p, n = e.planDrafts(bs, context, p, n)
	p.MaxContext = longest
	p.Notes = append(p.Notes, e.cfg.Warnings...)
	if bs[0].minimal {
		p.MaxContext = context // more needs a larger budget
	}
	e.plan, e.model, e.opt.Context, e.opt.UBatch, e.opt.Resident = p, n.model, context, min(e.opt.UBatch, context), p.Resident
	return e.sameLayers()
}

// sameLayers makes sure that model and catalog number the same blocks: the one goes by routers, the other by tensors of
// experts, and an expert of another block would be used in silence.
func (e *Engine) sameLayers() error {
	var blocks []int
	for _, l := range e.catalog.Layers {
		blocks = append(blocks, l.Block)
	}
	if routed := e.model.Routed(); !slices.Equal(routed, blocks) {
		return fmt.Errorf("engine: %s: blocks %v have routers, blocks %v have tensors of routed experts: get another conversion of the model: %w",
			e.file.Shards[0].Path, routed, blocks, expert.ErrLayout)
	}
	return nil
}

// planFor divides the budget that leaves the experts least; of equals the smallest, of those the first.
func (e *Engine) planFor(bs []budget, context int) (*expert.Plan, *needs, error) {
	n, err := e.needsOf(context)
	if err != nil {
		return nil, nil, err
	}
	least, err := e.divide(n, bs)
	if err != nil {
		return nil, nil, err
	}
	if set := e.catalog.TokenBytes(); least.ArenaBytes < set {
		least.Notes = append(least.Notes, fmt.Sprintf("the arena of %s is smaller than the experts of one token (%s): hardly any read can be saved, give --ram at least %s",
			expert.FormatBytes(least.ArenaBytes), expert.FormatBytes(set), expert.FormatBytes(least.Budget-least.Unused-least.ArenaBytes+set)))
	}
	return least, n, nil
}

// copyShare is the part of the arena that a copy of the resident weights may cost: one in a hundred costs about half a point
// of hits.
const copyShare = 100

// divide decides how resident weights are held, the same under all limits. Where nobody chose they are copied to huge pages
// if that takes next to nothing from the experts: so it is where a limit counts the page cache anyway, and elsewhere if all
// experts fit. Mapped weights at a group's limit are dropped and read again (docs/benchmarks.md).
func (e *Engine) divide(n *needs, bs []budget) (*expert.Plan, error) {
	if e.opt.Resident != "auto" {
		return e.leastOf(n, bs, e.opt.Resident)
	}
	mapped, err := e.leastOf(n, bs, "mmap")
	if err != nil || bs[0].minimal {
		return mapped, err
	}
	if copied, err := e.leastOf(n, bs, "copy"); err == nil && copied.ArenaBytes >= mapped.ArenaBytes-mapped.ArenaBytes/copyShare {
		copied.Minimum = mapped.Minimum
		return copied, nil
	}
	return mapped, nil
}

// leastOf divides every budget and returns the plan that leaves the experts least: it keeps within all of them.
func (e *Engine) leastOf(n *needs, bs []budget, how string) (*expert.Plan, error) {
	var least *expert.Plan
	for _, b := range bs {
		p, err := e.divideAs(n, b, how)
		if err != nil {
			return nil, err
		}
		if least == nil || p.ArenaBytes < least.ArenaBytes || p.ArenaBytes == least.ArenaBytes && p.Budget < least.Budget {
			least = p
		}
	}
	return least, nil
}

func (e *Engine) divideAs(n *needs, b budget, how string) (*expert.Plan, error) {
	smallest := e.catalog.SlotBytes(e.catalog.MinSlots())
	terms := e.terms(n, b.physical, how, smallest)
	_, err := expert.NewPlan(0, b.boundBy, terms, e.catalog)
	var small *expert.TooSmall
	if !errors.As(err, &small) {
		return nil, err
	}
	if b.minimal {
		b.bytes = small.Minimum
	}
	p, err := expert.NewPlan(b.bytes, b.boundBy, terms, e.catalog)
	if err != nil {
		return nil, err
	}
	if b.physical { // the kernel's share grows with the arena, which it takes only a few thousandths from
		if p, err = expert.NewPlan(b.bytes, b.boundBy, e.terms(n, true, how, p.ArenaBytes), e.catalog); err != nil {
			return nil, err
		}
	}
	p.Minimum, p.Resident = small.Minimum, how
	return p, nil
}

// contextStep is how finely the largest context is looked for.
const contextStep = 256

// maxContext finds the largest context that leaves the arena the experts of one token, or, where no context does, the
// slots it cannot do without; 0 if none fits.
func (e *Engine) maxContext(bs []budget) int {
	least := min(contextStep, e.cfg.Context)
	p, _, err := e.planFor(bs, least)
	if err != nil {
		return 0
	}
	want := int64(0)
	if set := e.catalog.TokenBytes(); p.ArenaBytes >= set {
		want = set
	}
	fits := func(context int) bool {
		p, _, err := e.planFor(bs, context)
		return err == nil && p.ArenaBytes >= want
	}
	if fits(e.cfg.Context) {
		return e.cfg.Context
	}
	low, high := least/contextStep, e.cfg.Context/contextStep+1 // in steps: low fits, high does not
	for high-low > 1 {
		if mid := (low + high) / 2; fits(mid * contextStep) {
			low = mid
		} else {
			high = mid
		}
	}
	return max(least, low*contextStep)
}
