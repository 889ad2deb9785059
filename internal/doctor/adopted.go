package doctor

import (
	"context"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// AdoptedLock is a lock that the application takes by itself, and that counts its holders.
type AdoptedLock struct {
	Name     string // as in kubernetes:shop/orders
	Resource fence.Resource
	// Look returns who has the lock, "" for nobody, and at least which token the grant of that has.
	Look func(ctx context.Context) (holder string, token fence.Token, err error)
}

// adoptedChecks look at the application's own locks, if any are named.
func (in *Input) adoptedChecks() []Check {
	if len(in.Adopted) == 0 {
		return nil
	}
	return []Check{{"resources.adopted", []string{schemaVersion}, checkAdopted}}
}

// checkAdopted looks for grants of a lock that no sidecar has counted.
func checkAdopted(ctx context.Context, in *Input) (found []Finding, err error) {
	for _, lock := range in.Adopted {
		holder, token, err := lock.Look(ctx)
		if err != nil {
			return found, fmt.Errorf("%s: %w", lock.Name, err)
		}
		last, err := fence.LastToken(ctx, in.Database, lock.Resource)
		if err != nil {
			return found, err
		}
		found = append(found, judgeAdopted(lock, holder, token, last)...)
	}
	return found, nil
}

func judgeAdopted(lock AdoptedLock, holder string, token, last fence.Token) []Finding {
	switch {
	case holder == "":
		return finding.Fine("nobody has %s", lock.Name)
	case token <= last:
		return finding.Fine("%s is sealed for %q", lock.Name, holder)
	}
	return []Finding{{
		Grade: Warning, Says: fmt.Sprintf("%s was granted to %q, and no sidecar has sealed that: the last token of %s is %d", lock.Name, holder, lock.Resource, last),
		Means:  "The former holder isn't locked out yet, and the writes of this one to protected tables are refused.",
		Remedy: []string{"run a sidecar beside every process that takes the lock; see its log, and wirefence status --adopted"},
	}}
}
