// Package metrics measures the surroundings of a proxy: the resources in its database,
// handoffs, and the lease store.
//
// The package imports fence, lockclient, internal/quietlog and internal/timelines.
package metrics

import (
	"slices"
	"sync"

	"github.com/wirefence/wirefence/fence"
)

// Other is the value of the label resource for all resources that have no value of their
// own. A resource of that name has none either.
const Other = "other"

// Names are the values of the label resource: the first names that Label gets, up to a
// limit. Safe for concurrent use.
type Names struct {
	limit int

	mu  sync.Mutex
	met map[fence.Resource]struct{}
}

// NewNames makes room for limit names, of which first are the first.
func NewNames(limit int, first ...fence.Resource) *Names {
	n := &Names{limit: limit, met: map[fence.Resource]struct{}{}}
	for _, name := range first {
		n.Label(name)
	}
	return n
}

// Label returns a name's value of the label. It is Other for an invalid name, and for a new
// one without room.
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

// all returns the names so far, in order, and the room for further ones.
func (n *Names) all() (met []fence.Resource, room int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.met {
		met = append(met, name)
	}
	slices.Sort(met)
	return met, n.limit - len(n.met)
}
