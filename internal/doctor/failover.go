package doctor

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// failoverChecks examine what failovers of PostgreSQL would do to tokens, and have done.
var failoverChecks = []Check{
	{"failover.lost", []string{schemaVersion}, checkLost},
	{"failover.commits", []string{databaseReachable}, checkCommits},
	{"failover.hosts", []string{databaseReachable}, checkHosts},
	{"failover.former", []string{schemaVersion}, judging((*Input).resources, judgeFormer)},
}

//go:embed sql/asynchronous.sql
var asynchronousSQL string

// checkLost reports the resources whose tokens would still count after a failover that lost
// the last grants.
func checkLost(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := in.settings(ctx)
	if err != nil {
		return nil, err
	}
	asynchronous, err := row[struct{ Standbys int64 }](ctx, in, asynchronousSQL)
	if err != nil {
		return nil, err
	}
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	trusted, elsewhere := []string{}, []string{}
	for _, r := range all {
		switch {
		case r.Advance == fence.AdvanceOnUse:
			elsewhere = append(elsewhere, quoted(string(r.Resource)))
		case r.Failover == fence.FailoverTrust:
			trusted = append(trusted, quoted(string(r.Resource)))
		}
	}
	lagging := "standbys follow asynchronously"
	if asynchronous.Standbys < s.Standbys {
		lagging = fmt.Sprintf("%d of %d standbys follow asynchronously", asynchronous.Standbys, s.Standbys)
	}
	if asynchronous.Standbys > 0 && len(trusted) > 0 {
		found = append(found, Finding{Grade: Warning, Says: lagging + ", and failover is trust: " + listed(trusted),
			Means: "A failover can lose the last grants. Then a former holder's token counts again, and the last one is granted twice.",
			Remedy: []string{"wirefence resource set --failover reacquire --reason 'standbys may lag', and the same for each RESOURCE for which it was set",
				"or synchronous standbys: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()"}})
	}
	if asynchronous.Standbys > 0 && len(elsewhere) > 0 {
		found = append(found, Finding{Grade: Note, Says: "resources take tokens that are counted elsewhere: " + listed(elsewhere),
			Means: "After a failover that loses the last of them, a former holder's token counts until the present holder writes. Wirefence can't renumber them."})
	}
	return finding.OrFine(found, "no token counts that a failover may have lost"), nil
}

//go:embed sql/commits.sql
var commitsSQL string

// checkCommits reports the roles and databases whose commits wait for less than grants do.
// Grants wait for the disk and for synchronous standbys whatever the sealing role's setting
// is, so these settings matter only to writers.
func checkCommits(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := in.settings(ctx)
	if err != nil {
		return nil, err
	}
	if s.SynchronousNames == "" {
		return finding.Fine("no commit waits for standbys; grants wait for the disk, whatever synchronous_commit says"), nil
	}
	all, err := rows[struct{ Where, Remedy string }](ctx, in, commitsSQL)
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		found = append(found, Finding{Grade: Note, Says: "synchronous_commit is " + at.Where,
			Means:  "Grants wait for synchronous standbys all the same. Writes there don't, nor do tokens that their first use records: a failover can lose them.",
			Remedy: []string{at.Remedy + ", where that matters more than waiting for a standby"}})
	}
	return finding.OrFine(found, "commits wait for synchronous standbys, as grants do"), nil
}

// judgeFormer reports the resources that nobody has acquired since a failover.
func judgeFormer(_ *Input, all []fence.ResourceStatus) (found []Finding) {
	var former []string
	for _, r := range all {
		if r.Former {
			former = append(former, quoted(string(r.Resource)))
		}
	}
	if len(former) > 0 {
		found = append(found, Finding{Grade: Note, Says: "the database was promoted or restored, and since then nobody has acquired " + listed(former),
			Means: "Tokens from before are refused with WF001. Holders acquire again by themselves, unless they have ended."})
	}
	return finding.OrFine(found, "every token was granted by this server, on its timeline")
}
