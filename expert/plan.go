package expert

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
)

// Kinds of memory a term can be.
const (
	Anonymous = "anonymous" // private memory: counts under every limit
	File      = "file"      // clean pages of a mapped file: count only where page cache is charged
)

// ArenaTerm is the name of the term that holds the experts.
const ArenaTerm = "arena"

// Term is one purpose of memory in a plan.
type Term struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Kind    string `json:"kind"`    // Anonymous or File
	Counted bool   `json:"counted"` // counts against the limit that binds
}

// ClassPlan is what a plan gives to one size class.
type ClassPlan struct {
	SlotBytes int64 `json:"slot_bytes"`
	Slots     int   `json:"slots"`
	Experts   int   `json:"experts"`
}

// Plan divides a budget: counted terms (the arena is one of them) + Unused = Budget, to the byte.
type Plan struct {
	Budget     int64       `json:"budget_bytes"`
	BoundBy    string      `json:"bound_by"`      // which limit the budget comes from
	Minimum    int64       `json:"minimum_bytes"` // the smallest budget that works with these terms
	Unused     int64       `json:"unused_bytes"`  // below one slot of any class that lacks slots
	MaxContext int         `json:"max_context"`   // largest context that the budget allows; set by who knows the cost of a token
	Terms      []Term      `json:"terms"`
	Classes    []ClassPlan `json:"classes"`
	Resident   string      `json:"resident,omitempty"` // how the weights outside the experts are held: mmap, copy or lock
	Notes      []string    `json:"notes,omitempty"`    // what the user should know

	Slots      []int `json:"-"` // per class
	ArenaBytes int64 `json:"-"`
}

// TooSmall refuses a budget; match with errors.As.
type TooSmall struct {
	Budget  int64
	Minimum int64 // the smallest budget that works
	BoundBy string
}

func (e *TooSmall) Error() string {
	return fmt.Sprintf("expert: a memory budget of %d bytes (%s, %s) is too small: the smallest that works is %d bytes (%s): raise --ram or lower -c, -ub or --parallel",
		e.Budget, FormatBytes(e.Budget), e.BoundBy, e.Minimum, FormatBytes(e.Minimum))
}

// ErrTerms: a term is negative, or the terms overflow.
var ErrTerms = errors.New("impossible memory terms")

// NewPlan divides budget: the arena gets what the counted terms leave, rounded down to whole slots. Every class gets
// what one token needs of it, and beyond that slots in proportion to its layers. It is a pure function; the first call
// with a model's terms and a budget of 0 answers with the minimum in a TooSmall.
func NewPlan(budget int64, boundBy string, terms []Term, cat *Catalog) (*Plan, error) {
	others, err := counted(terms)
	if err != nil {
		return nil, err
	}
	slots := cat.MinSlots()
	minimum := others + cat.SlotBytes(slots)
	if budget < minimum {
		return nil, &TooSmall{Budget: budget, Minimum: minimum, BoundBy: boundBy}
	}
	unused := cat.fill(slots, budget-minimum)
	p := &Plan{
		Budget: budget, BoundBy: boundBy, Minimum: minimum, Unused: unused, Slots: slots, ArenaBytes: cat.SlotBytes(slots),
	}
	p.Terms = append(append(p.Terms, terms...), Term{Name: ArenaTerm, Bytes: p.ArenaBytes, Kind: Anonymous, Counted: true})
	for i, k := range cat.Classes {
		p.Classes = append(p.Classes, ClassPlan{SlotBytes: k.SlotBytes, Slots: slots[i], Experts: k.Experts})
	}
	return p, nil
}

func counted(terms []Term) (int64, error) {
	sum := int64(0)
	for _, t := range terms {
		if t.Bytes < 0 || sum > 1<<62-t.Bytes {
			return 0, fmt.Errorf("expert: term %q of %d bytes after %d: %w", t.Name, t.Bytes, sum, ErrTerms)
		}
		if t.Counted {
			sum += t.Bytes
		}
	}
	return sum, nil
}

// SlotBytes is the size of an arena with so many slots of each class. It needs no rounding: slots are whole pages, and
// regions are cut at slot borders.
func (c *Catalog) SlotBytes(slots []int) int64 {
	sum := int64(0)
	for i, k := range c.Classes {
		sum += int64(slots[i]) * k.SlotBytes
	}
	return sum
}

// TokenBytes is what all experts of one token take, over all layers. An arena below it keeps hardly any expert until the
// next token asks again.
func (c *Catalog) TokenBytes() int64 {
	sum := int64(0)
	for _, l := range c.Layers {
		sum += int64(l.Used) * c.Classes[l.Class].SlotBytes
	}
	return sum
}

// fill adds slots while rest allows, always to the class that has the fewest per layer among those that lack slots and
// still fit, and returns what is left.
func (c *Catalog) fill(slots []int, rest int64) int64 {
	for {
		next := -1
		for i, k := range c.Classes {
			if slots[i] >= k.Experts || k.SlotBytes > rest {
				continue
			}
			if next < 0 || slots[i]*c.Classes[next].Layers < slots[next]*k.Layers {
				next = i
			}
		}
		if next < 0 {
			return rest
		}
		slots[next]++
		rest -= c.Classes[next].SlotBytes
	}
}

// Table prints the plan for people: terms, classes and what is left over.
func (p *Plan) Table() string {
	var s strings.Builder
	fmt.Fprintf(&s, "budget %s (%d bytes), bound by %s; smallest that works %s (%d bytes)\n",
		FormatBytes(p.Budget), p.Budget, p.BoundBy, FormatBytes(p.Minimum), p.Minimum)
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "bytes\t\tkind\tcounted\t  term\n")
	for _, t := range p.Terms {
		count := "yes"
		if !t.Counted {
			count = "no"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t  %s\n", t.Bytes, FormatBytes(t.Bytes), t.Kind, count, t.Name)
	}
	fmt.Fprintf(w, "%d\t%s\t\t\t  unused\n", p.Unused, FormatBytes(p.Unused))
	_ = w.Flush() // into memory
	for _, k := range p.Classes {
		fmt.Fprintf(&s, "slots of %d bytes: %d for %d experts (%.1f %%)\n", k.SlotBytes, k.Slots, k.Experts, 100*float64(k.Slots)/float64(k.Experts))
	}
	if p.MaxContext > 0 {
		fmt.Fprintf(&s, "largest context: %d tokens\n", p.MaxContext)
	}
	if p.Resident != "" {
		fmt.Fprintf(&s, "resident weights: %s\n", p.Resident)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&s, "note: %s\n", n)
	}
	return s.String()
}

// FormatBytes writes a size with three digits and a 1024-based unit.
func FormatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, u := float64(n), 0
	for (x >= 1000 || x <= -1000) && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	switch {
	case u == 0:
		return fmt.Sprintf("%d B", n)
	case x < 10:
		return fmt.Sprintf("%.2f %s", x, units[u])
	case x < 100:
		return fmt.Sprintf("%.1f %s", x, units[u])
	}
	return fmt.Sprintf("%.0f %s", x, units[u])
}
