package engine

import (
	"fmt"
	"slices"
	"sync"
)

// queue holds requests that wait for a session. A caller that gives up takes its own out.
type queue struct {
	mu     sync.Mutex
	jobs   []*job
	most   int
	closed bool
	signal chan struct{} // one buffered wake-up for the loop
}

func newQueue(most int) *queue { return &queue{most: most, signal: make(chan struct{}, 1)} }

// push refuses when too many wait or the engine closes.
func (q *queue) push(j *job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if len(q.jobs) >= q.most {
		return fmt.Errorf("%w: %d requests wait already; try again later or raise --queue", ErrBusy, q.most)
	}
	q.jobs = append(q.jobs, j)
	wake(q.signal)
	return nil
}

// pop returns the request that waited longest, or nil.
func (q *queue) pop() *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		return nil
	}
	j := q.jobs[0]
	q.jobs = slices.Delete(q.jobs, 0, 1)
	return j
}

// remove takes a request out and reports whether it still waited.
func (q *queue) remove(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.jobs, j)
	if i >= 0 {
		q.jobs = slices.Delete(q.jobs, i, i+1)
	}
	return i >= 0
}

// close refuses further requests and returns those that waited.
func (q *queue) close() []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	jobs := q.jobs
	q.jobs = nil
	return jobs
}

func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
