package doctor

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// failoverChecks look at what a failover of PostgreSQL would do to tokens, and has done.
var failoverChecks = []Check{
	{"failover.lost", []string{schemaVersion}, checkLost},
	{"failover.commits", []string{databaseReachable}, checkCommits},
	{"failover.hosts", []string{databaseReachable}, checkHosts},
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
	lagging := "standbys follow asynchronously"
	if s.Asynchronous < s.Standbys {
		lagging = fmt.Sprintf("%d of %d standbys follow asynchronously", s.Asynchronous, s.Standbys)
	}
	if s.Asynchronous > 0 && len(trusted) > 0 {
		found = append(found, Finding{Grade: Warning, Says: lagging + ", and failover is trust: " + some(trusted),
			Means: "A failover can lose the last grants. Then a former holder's token counts again, and the last one is granted twice.",
			Remedy: []string{"wirefence resource set --failover reacquire --reason 'standbys may lag', and the same for each RESOURCE of which it was said",
				"or synchronous standbys: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()"}})
	}
	if s.Asynchronous > 0 && len(elsewhere) > 0 {
		found = append(found, Finding{Grade: Note, Says: "resources take tokens that are counted elsewhere: " + some(elsewhere),
			Means: "After a failover that loses the last of them, a former holder's token counts until the present holder writes. Wirefence can't renumber them."})
	}
	return orFine(found, "no token counts that a failover may have lost"), nil
}

//go:embed sql/commits.sql
var commitsSQL string

// checkCommits tells whose commits wait for less than a grant's. Grants wait for the disk
// and for synchronous standbys whatever the role that seals is set to, so that these
// settings matter to writers alone.
func checkCommits(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	if s.SynchronousNames == "" {
		return fine("no commit waits for standbys; grants wait for the disk, whatever synchronous_commit says"), nil
	}
	type set struct{ Where, Remedy string }
	all, err := rows[set](ctx, in, commitsSQL)
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		found = append(found, Finding{Grade: Note, Says: "synchronous_commit is " + at.Where,
			Means:  "Grants wait for synchronous standbys all the same. Writes there don't, nor do tokens that their first use records: a failover can lose them.",
			Remedy: []string{at.Remedy + ", where that matters more than waiting for a standby"}})
	}
	return orFine(found, "commits wait for synchronous standbys, as grants do"), nil
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
