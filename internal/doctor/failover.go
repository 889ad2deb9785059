package doctor

import (
	"context"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// failoverChecks look at what a failover of PostgreSQL would do to tokens, and has done.
var failoverChecks = []Check{
	{"failover.lost", []string{schemaVersion}, checkLost},
	{"failover.former", []string{schemaVersion}, checkFormer},
}

// checkLost tells which resources would go on with tokens that a failover has lost.
func checkLost(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	var trusted, elsewhere []fence.ResourceStatus
	for _, r := range all {
		switch {
		case r.Advance == fence.AdvanceOnUse:
			elsewhere = append(elsewhere, r)
		case r.Failover == fence.FailoverTrust:
			trusted = append(trusted, r)
		}
	}
	if s.Standbys > 0 && s.SynchronousNames == "" && len(trusted) > 0 {
		found = append(found, Finding{Grade: Warning, Says: "standbys follow asynchronously, and failover is trust: " + some(trusted),
			Means: "A failover can lose the last grants. Then a former holder's token counts again, and the last one is granted twice.",
			Remedy: []string{"wirefence resource set --failover reacquire --reason 'standbys may lag', and the same for each RESOURCE of which it was said",
				"or synchronous standbys: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()"}})
	}
	if s.Standbys > 0 && s.SynchronousNames == "" && len(elsewhere) > 0 {
		found = append(found, Finding{Grade: Note, Says: "resources take tokens that are counted elsewhere: " + some(elsewhere),
			Means: "Behind a failover that loses the last of them, a former holder's token counts until the present holder writes. Wirefence can't renumber them."})
	}
	return orFine(found, "no token counts that a failover may have lost"), nil
}

// checkFormer tells of resources that nobody has acquired since a failover.
func checkFormer(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	var former []fence.ResourceStatus
	for _, r := range all {
		if r.Former {
			former = append(former, r)
		}
	}
	if len(former) > 0 {
		found = append(found, Finding{Grade: Note, Says: "the database was promoted or restored, and since then nobody has acquired " + some(former),
			Means: "Tokens from before are refused with WF001. Holders acquire again by themselves, unless they have ended."})
	}
	return orFine(found, "every token was granted by this server, on its timeline"), nil
}

// some names a few resources, and says how many there are.
func some(all []fence.ResourceStatus) string {
	text := ""
	for i, r := range all[:min(len(all), mostNamed)] {
		if i > 0 {
			text += ", "
		}
		text += quoted(string(r.Resource))
	}
	if more := len(all) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
