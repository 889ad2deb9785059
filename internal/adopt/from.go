// Package adopt is what the kinds of adopted locks share: the setting that names the locks which
// the application takes by itself, and the book of the leases that follow them.
//
// Of this module it imports fence.
package adopt

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
)

// Kind is where the application takes a lock.
type Kind string

// The kinds of locks that a lease can follow.
const (
	Advisory   Kind = "advisory"
	Row        Kind = "row"
	Kubernetes Kind = "kubernetes"
	Redis      Kind = "redis"
)

var kinds = []Kind{Advisory, Row, Kubernetes, Redis}

// Lock is a lock that the application takes, and the resource whose lease follows it.
type Lock struct {
	Kind     Kind
	Resource fence.Resource
	// Numbers are the keys of an advisory lock: one of 64 bits, or two of 32.
	Numbers []int64
	// Space is the class of a row, or the namespace of a Lease of Kubernetes.
	Space string
	// Name is the key of a row as it stands in a fence, the name of a Lease, or a key in Redis.
	Name string
}

// String is the lock's name in the setting, without the resource.
func (l Lock) String() string {
	name := l.Name
	switch l.Kind {
	case Advisory:
		numbers := make([]string, len(l.Numbers))
		for i, n := range l.Numbers {
			numbers[i] = strconv.FormatInt(n, 10)
		}
		name = strings.Join(numbers, ",")
	case Row:
		name = l.Space + "(" + l.Name + ")"
	case Kubernetes:
		name = l.Space + "/" + l.Name
	}
	return string(l.Kind) + ":" + name
}

// From is the value of WIREFENCE_LEASE_FROM: at most fence.MaxPairs locks, each with a resource of
// its own.
type From []Lock

// Of returns the locks of a kind.
func (f From) Of(kind Kind) (all From) {
	for _, l := range f {
		if l.Kind == kind {
			all = append(all, l)
		}
	}
	return all
}

// ParseFrom reads a comma list of advisory:42=RESOURCE, advisory:7,42=RESOURCE,
// row:CLASS(KEY)=RESOURCE, kubernetes:NAMESPACE/NAME=RESOURCE and redis:KEY=RESOURCE. Resources
// are percent-encoded as in a fence, keys in Redis stand as they are. An empty text has no locks.
func ParseFrom(text string) (all From, err error) {
	for rest := text; rest != ""; {
		var item string
		if item, rest, err = cutItem(rest); err != nil {
			return nil, err
		}
		l, err := parseLock(item)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		for _, other := range all {
			if other.String() == l.String() {
				return nil, fmt.Errorf("%s is named twice", l)
			}
			if other.Resource == l.Resource {
				return nil, fmt.Errorf("%s and %s are both for the resource %q: two locks have two holders", other, l, l.Resource)
			}
		}
		all = append(all, l)
	}
	if len(all) > fence.MaxPairs {
		return nil, fmt.Errorf("it names %d locks, at most %d are allowed", len(all), fence.MaxPairs)
	}
	return all, nil
}

// cutItem cuts the first item off a list. A comma ahead of an item's = belongs to the lock's name.
func cutItem(list string) (item, rest string, err error) {
	equals := strings.IndexByte(list, '=')
	if equals < 0 {
		return "", "", fmt.Errorf("%q has no resource: it is written LOCK=RESOURCE", list)
	}
	for _, kind := range kinds {
		if i := strings.Index(list[:equals], ","+string(kind)+":"); i >= 0 {
			return "", "", fmt.Errorf("%q has no resource: it is written LOCK=RESOURCE", list[:i])
		}
	}
	comma := strings.IndexByte(list[equals:], ',')
	if comma < 0 {
		return list, "", nil
	}
	item, rest = list[:equals+comma], list[equals+comma+1:]
	if rest == "" {
		return "", "", errors.New("it ends in a comma")
	}
	return strings.TrimSpace(item), strings.TrimSpace(rest), nil
}

func parseLock(item string) (l Lock, err error) {
	equals := strings.LastIndexByte(item, '=')
	kind, name, found := strings.Cut(item[:equals], ":")
	if !found || !slices.Contains(kinds, Kind(kind)) {
		return l, errors.New("a lock is advisory:42, advisory:7,42, row:CLASS(KEY), kubernetes:NAMESPACE/NAME or redis:KEY")
	}
	l.Kind = Kind(kind)
	resource, err := fence.Parse(item[equals+1:] + "=1")
	if err != nil || len(resource.Pairs()) != 1 {
		return l, errors.New("what follows = isn't a resource as it stands in a fence")
	}
	l.Resource = resource.Pairs()[0].Resource
	switch l.Kind {
	case Advisory:
		l.Numbers, err = parseNumbers(name)
	case Row:
		l.Space, l.Name, err = parseRow(name)
	case Kubernetes:
		l.Space, l.Name, err = parseObject(name)
	case Redis:
		if l.Name = name; name == "" {
			err = errors.New("a key in Redis is missing")
		}
	}
	return l, err
}

func parseNumbers(name string) (numbers []int64, err error) {
	parts := strings.Split(name, ",")
	bits := 64
	if len(parts) == 2 {
		bits = 32
	}
	for _, part := range parts {
		n, err := strconv.ParseInt(part, 10, bits)
		if err != nil || len(parts) > 2 {
			return nil, errors.New("the keys of an advisory lock are one integer of 64 bits, or two of 32")
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

func parseRow(name string) (class, key string, err error) {
	row, err := fence.Parse(name + "=1")
	if err != nil {
		return "", "", err
	}
	if !row.HasClaims() {
		return "", "", errors.New("a row is written CLASS(KEY)")
	}
	claim := row.Claims()[0]
	return claim.Class, claim.Key, nil
}

// object is a name of Kubernetes' (documentation, "Object Names and IDs").
var object = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

func parseObject(name string) (space, lease string, err error) {
	space, lease, _ = strings.Cut(name, "/")
	if !object.MatchString(space) || !object.MatchString(lease) || strings.Contains(space, ".") {
		return "", "", errors.New("a Lease of Kubernetes is written NAMESPACE/NAME")
	}
	return space, lease, nil
}
