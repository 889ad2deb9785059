// Package metrics measures what stands around a proxy: the resources in its database,
// handoffs, and the lease store.
//
// The package imports fence, lockclient and internal/timelines.
package metrics

import (
	"slices"
	"sync"

	"github.com/wirefence/wirefence/fence"
)

// Other is the value of the label resource for all resources that have no value of their
// own. A resource of that name has none either.
const Other = "other"

// Names are the values of the label resource: the names that are met first, up to a
// number. Safe for concurrent use.
type Names struct {
	limit int

	mu  sync.Mutex
	met map[fence.Resource]struct{}
}

// NewNames makes room for so many names. Those given are met.
func NewNames(limit int, first ...fence.Resource) *Names {
	n := &Names{limit: limit, met: map[fence.Resource]struct{}{}}
	for _, name := range first {
		n.Label(name)
	}
	return n
}

// Label meets a name and returns its value of the label. What no resource can be called is
// Other.
func (n *Names) Label(name fence.Resource) string {
	if _, err := fence.ParseResource(string(name)); err != nil || name == Other {
		return Other
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, met := n.met[name]; !met {
		if len(n.met) >= n.limit {
			return Other
		}
		n.met[name] = struct{}{}
	}
	return string(name)
}

// all returns the names that were met, in order, and for how many more there is room.
func (n *Names) all() (met []fence.Resource, room int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.met {
		met = append(met, name)
	}
	slices.Sort(met)
	return met, n.limit - len(n.met)
}
