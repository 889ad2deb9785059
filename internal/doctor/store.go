package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/finding"
)

const storeReachable = "store.reachable"

// storeChecks look at the lease store that is named.
func (in *Input) storeChecks() []Check {
	if in.Store == nil {
		return nil
	}
	all := []Check{{storeReachable, nil, checkStore}}
	if examiner, ok := in.Store.(lockclient.Examiner); ok {
		for _, e := range examiner.Examinations() {
			all = append(all, Check{"store." + e.Name, []string{storeReachable}, func(ctx context.Context, _ *Input) ([]Finding, error) { return e.Run(ctx) }})
		}
	}
	if _, counts := in.Store.(lockclient.Counter); counts {
		all = append(all, Check{"store.counters", []string{storeReachable, schemaVersion}, checkCounters})
	}
	return all
}

// nobodys is a resource that is looked at and never taken.
const nobodys fence.Resource = "wirefence-doctor"

func checkStore(ctx context.Context, in *Input) ([]Finding, error) {
	look := func() error {
		if l, ok := in.Store.(lockclient.Looker); ok {
			_, err := l.Look(ctx, nobodys)
			return err
		}
		return errors.New("the store can't be looked at")
	}
	err := look() // which also connects
	if err != nil {
		return []Finding{{
			Grade: Problem, Says: "the lease store can't be reached: " + err.Error(),
			Means:  "No lease is granted or renewed; present ones end at their deadlines. Writes with the current token are still accepted.",
			Remedy: []string{"see that it runs, and that " + in.StoreSetting + " names it with the right credentials"},
		}}, nil
	}
	trip, err := roundTrip(ctx, look)
	if err != nil {
		return nil, err
	}
	return finding.Fine("the lease store of %s answers in %v", in.StoreSetting, trip), nil
}

// mostCounters is how many counters are compared.
const mostCounters = 200

// checkCounters looks whether the store has forgotten what it counted.
func checkCounters(ctx context.Context, in *Input) ([]Finding, error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	counter := in.Store.(lockclient.Counter)
	compared, behind := 0, []string{}
	for _, r := range all {
		if r.Source != "" && r.Source != in.Source || compared == mostCounters {
			continue
		}
		count, err := counter.Counted(ctx, r.Resource)
		if err != nil {
			return nil, err
		}
		if compared++; count < r.LastToken {
			behind = append(behind, fmt.Sprintf("%s (%d, recorded are %d)", r.Resource, count, r.LastToken))
		}
	}
	if len(behind) > 0 {
		named := behind[:min(len(behind), mostNamed)]
		return []Finding{{Grade: Note, Says: fmt.Sprintf("the store's counter is behind for %d of %d resources: %s", len(behind), compared, strings.Join(named, ", ")),
			Means: "It has forgotten tokens, or others counted on, as a revocation does. The next grant raises it; no token is granted twice where grants are sealed."}}, nil
	}
	return finding.Fine("of the store's counters none is behind the database; compared: %d", compared), nil
}

// checkSources looks for resources whose grants came from another lease store than the one
// that is named here.
func checkSources(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	here, elsewhere := in.Source, []string{}
	for _, r := range all {
		switch {
		case r.Source == here || !slices.Contains(in.Sources, r.Source):
		case r.Resource == in.Lease:
			found = append(found, Finding{Grade: Problem,
				Says:   fmt.Sprintf("the tokens of %s, of WIREFENCE_LEASE, come from %s, and the lease store here is %s", r.Resource, r.Source, here),
				Means:  "The proxy is refused each grant (WF003): it never leads.",
				Remedy: []string{fmt.Sprintf("wirefence resource set %s --source %s --reason 'another lease store', or name the former store in the settings", quoted(string(r.Resource)), here)}})
		default:
			elsewhere = append(elsewhere, fmt.Sprintf("%s (%s)", r.Resource, r.Source))
		}
	}
	if len(elsewhere) > 0 {
		found = append(found, Finding{Grade: Note,
			Says:   fmt.Sprintf("resources whose tokens come from another lease store than %s: %d: %s", here, len(elsewhere), strings.Join(elsewhere[:min(len(elsewhere), mostNamed)], ", ")),
			Means:  "Grants from this store are refused with WF003. That is as it should be if others use the other store.",
			Remedy: []string{fmt.Sprintf("wirefence resource set NAME --source %s --reason 'another lease store', if the store was changed", here)}})
	}
	return finding.OrFine(found, "no resource has its tokens from another lease store than %s", here), nil
}
