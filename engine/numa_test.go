package engine

import (
	"errors"
	"reflect"
	"testing"

	"github.com/epq-uring/epq-uring/internal/mem"
)

func TestPlacesFor(t *testing.T) {
	one := []mem.Node{{ID: 0, CPUs: []int{0, 1, 2, 3}}}
	two := []mem.Node{{ID: 0, CPUs: []int{0, 1, 2, 3}}, {ID: 2, CPUs: []int{4, 5, 6, 7, 8, 9}}}
	all := []int{0, 2, 4, 6, 1, 3, 5, 7, 8, 9}
	for name, c := range map[string]struct {
		mode           string
		nodes          []mem.Node
		allowed        []int
		threads, quota int
		want           places
		use            int
		err            error
	}{
		"one node":            {"", one, []int{0, 1}, 0, 2, places{cpus: []int{0, 1}}, 2, nil},
		"one node, bind":      {"bind", one, []int{0, 1}, 0, 2, places{cpus: []int{0, 1}}, 2, nil},
		"kernel says nothing": {"interleave", nil, []int{0, 1}, 1, 2, places{cpus: []int{0, 1}}, 1, nil},
		"two nodes":           {"", two, all, 0, 10, places{[]int{0, 4, 2, 6, 1, 5, 3, 7, 8, 9}, mem.Interleave, []int{0, 2}}, 10, nil},
		"allowed on one only": {"", two, []int{4, 5}, 0, 2, places{cpus: []int{4, 5}}, 2, nil},
		"distribute":          {"distribute", two, all, 0, 10, places{[]int{0, 4, 2, 6, 1, 5, 3, 7, 8, 9}, mem.Interleave, []int{0, 2}}, 10, nil},
		"isolate":             {"isolate", two, all, 0, 10, places{[]int{4, 6, 5, 7, 8, 9}, mem.Prefer, []int{2}}, 6, nil},
		"numactl":             {"numactl", two, all, 3, 10, places{cpus: all}, 3, nil},
		"off":                 {"off", two, all, 3, 10, places{cpus: all}, 3, nil},
		"bind":                {"bind", two, all, 0, 10, places{[]int{4, 6, 5, 7, 8, 9}, mem.Prefer, []int{2}}, 6, nil},
		"bind, small quota":   {"bind", two, all, 0, 2, places{[]int{4, 6, 5, 7, 8, 9}, mem.Prefer, []int{2}}, 2, nil},
		"bind, too many":      {"bind", two, all, 7, 10, places{}, 0, ErrOption},
		"no such mode":        {"spread", two, all, 0, 10, places{}, 0, ErrOption},
	} {
		t.Run(name, func(t *testing.T) {
			got, use, err := placesFor(c.mode, c.nodes, c.allowed, c.threads, c.quota)
			if !errors.Is(err, c.err) || use != c.use || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %d threads, %v; want %+v, %d", got, use, err, c.want, c.use)
			}
		})
	}
}
