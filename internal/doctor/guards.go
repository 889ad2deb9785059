package doctor

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// guardChecks examine the guards, which refuse writes that bypass the proxy.
var guardChecks = []Check{
	{"guards.tables", []string{schemaVersion}, checkGuards},
	{"guards.bypass", []string{schemaVersion}, checkBypass},
	{"guards.replica-role", []string{databaseReachable}, checkReplicaRole},
	{"guards.replication", []string{schemaVersion}, checkReplication},
}

func checkGuards(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := read(ctx, in, func(tx pgx.Tx) ([]fence.Guard, error) { return fence.Guards(ctx, tx) })
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return []Finding{{Grade: Note, Says: "no table is guarded",
			Means:  "Writes by direct connections, which bypass the proxy, are not checked.",
			Remedy: []string{"wirefence protect TABLE --resource RESOURCE, for each table that must not be written with a stale token, or without one"}}}, nil
	}
	var shadows []string
	var protect string // for the first of them
	for _, g := range all {
		if g.Fault == "" {
			if g.Mode == fence.ModeShadow {
				shadows = append(shadows, g.Table)
				protect = cmp.Or(protect, fmt.Sprintf("wirefence protect %s --resource %s", quoted(g.Table), quoted(g.Resource)))
			}
			continue
		}
		f := Finding{
			Grade: Problem, Says: fmt.Sprintf("%s, for %s: %s", g.Table, g.Resource, g.Fault),
			Means: "A direct connection can write here with a stale token, or with none.",
		}
		if f.Remedy, err = in.guardRemedy(ctx, g); err != nil {
			return found, err
		}
		switch {
		case strings.HasPrefix(g.Fault, "the table has gone"):
			f.Grade, f.Means = Warning, "The table is gone; a new table of that name is not guarded."
		case strings.HasPrefix(g.Fault, "guarded, but not declared"):
			f.Grade, f.Means = Warning, "Its triggers work. If they are dropped, nothing reports it."
		case strings.HasPrefix(g.Fault, "a later partition"):
			f.Means = "TRUNCATE of that partition needs no token."
		case strings.HasPrefix(g.Fault, "a column of the template"), strings.HasPrefix(g.Fault, noClass):
			f.Grade, f.Means = Warning, "It refuses writes that should pass."
		}
		found = append(found, f)
	}
	if len(shadows) > 0 {
		found = append(found, Finding{
			Grade: Warning, Says: "guards in shadow mode: " + listed(shadows),
			Means:  "They record what they would refuse, and refuse nothing.",
			Remedy: []string{protect + ", when the history records no more writes that should pass"},
		})
	}
	return finding.OrFine(found, "guarded tables: %d, and all guards are in place", len(all)), nil
}

//go:embed sql/guard_root.sql
var guardRootSQL string

// guardRemedy returns the commands that mend a guard.
func (in *Input) guardRemedy(ctx context.Context, g fence.Guard) ([]string, error) {
	command := "wirefence protect %s --resource %s"
	if g.Mode == fence.ModeShadow {
		command += " --shadow"
	}
	protect := fmt.Sprintf(command, quoted(g.Table), quoted(g.Resource))
	switch {
	case strings.Contains(g.Fault, "protect that again"), strings.Contains(g.Fault, "protect the parent again"):
		roots, err := column(ctx, in, guardRootSQL, g.Table)
		if err != nil {
			return nil, err
		}
		if len(roots) > 0 {
			protect = fmt.Sprintf(command, quoted(roots[0]), quoted(g.Resource))
		}
	case strings.HasPrefix(g.Fault, "guarded for another resource"), strings.HasPrefix(g.Fault, "a column of the template"):
		return []string{"wirefence unprotect " + quoted(g.Table), protect + ", with the present names of its columns"}, nil
	case strings.HasPrefix(g.Fault, noClass):
		class, _, _ := strings.Cut(g.Resource, "(")
		return []string{"wirefence rows declare " + class + " --table TABLE --key COLUMN --claim EXPRESSION --while CONDITION", "wirefence unprotect " + quoted(g.Table) + ", if its rows are not to be guarded"}, nil
	case strings.HasPrefix(g.Fault, "the table has gone"):
		return []string{protect + ", if another took its place", "wirefence unprotect " + quoted(g.Table) + ", if not"}, nil
	}
	return []string{protect}, nil
}

// noClass begins the fault of a guard whose rows have no class.
const noClass = "the class of its rows is not declared"

// quoted quotes a word for the shell.
func quoted(word string) string {
	if word != "" && !strings.ContainsAny(word, " \"'`$\\{}*?()<>|&;~#!\t\n") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

//go:embed sql/bypasses.sql
var bypassesSQL string

// bypass counts the transactions of one login that wrote past a guard.
type bypass struct {
	Login        string
	Table        string
	Transactions int
	Last         time.Time
}

// recent is how long bypasses are reported.
const (
	recent     = 24 * time.Hour
	recentText = "24 hours"
)

func checkBypass(ctx context.Context, in *Input) (found []Finding, err error) {
	names, err := column(ctx, in, membersSQL, "wirefence_bypass")
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		found = append(found, Finding{
			Grade: Note, Says: "may write to guarded tables without a token: " + strings.Join(names, ", "),
			Means:  "Each of their transactions that does is recorded in wirefence.bypasses.",
			Remedy: []string{"REVOKE wirefence_bypass FROM " + pgx.Identifier{names[0]}.Sanitize() + ", when it doesn't need it any more"},
		})
	}
	writes, err := rows[bypass](ctx, in, bypassesSQL, recent.Seconds())
	if err != nil {
		return found, err
	}
	for _, b := range writes {
		found = append(found, Finding{
			Grade: Note, Says: fmt.Sprintf("%s wrote past guards in the last %s, in transactions: %d, last to %s at %s",
				b.Login, recentText, b.Transactions, b.Table, b.Last.UTC().Format(time.RFC3339)),
			Means: "These writes were not checked against the holder of the lease.",
		})
	}
	return finding.OrFine(found, "nobody is a member of wirefence_bypass, and nobody has bypassed a guard in the last %s", recentText), nil
}

//go:embed sql/replica_role.sql
var replicaRoleSQL string

//go:embed sql/replica_right.sql
var replicaRightSQL string

//go:embed sql/subscriptions.sql
var subscriptionsSQL string

//go:embed sql/replicating_extensions.sql
var replicatingExtensionsSQL string

// replicaRole is a place where session_replication_role is set to replica, or a role that may
// set it, and the statement that reverts that.
type replicaRole struct {
	Where  string
	Remedy string
}

// parameterRights is the first server version with GRANT SET ON PARAMETER.
const parameterRights = 150000

// checkReplicaRole looks for settings and rights by which guards' triggers don't fire.
func checkReplicaRole(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := rows[replicaRole](ctx, in, replicaRoleSQL)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		found = append(found, Finding{
			Grade: Problem, Says: "session_replication_role is replica " + r.Where,
			Means: "Guards don't fire in such sessions: they write without a token.", Remedy: []string{r.Remedy},
		})
	}
	s, err := in.server(ctx)
	if err != nil {
		return found, err
	}
	if s.Number >= parameterRights {
		if all, err = rows[replicaRole](ctx, in, replicaRightSQL); err != nil {
			return found, err
		}
		for _, r := range all {
			found = append(found, Finding{
				Grade: Warning, Says: r.Where + " may set session_replication_role",
				Means: "It can switch guards off for its own sessions.", Remedy: []string{r.Remedy},
			})
		}
	}
	return finding.OrFine(found, "session_replication_role is set nowhere"), nil
}

// checkReplication looks for what replicates rows to here by itself: an apply worker fires no
// guards.
func checkReplication(ctx context.Context, in *Input) (found []Finding, err error) {
	const means = "Replicated rows fire no guards: they are as good as the check where they were first written, and may arrive after a later holder has written here."
	remedy := []string{"guard the tables where they are written, too; if both sides are, seal each grant in both databases: WIREFENCE_SEAL_URLS"}
	subscriptions, err := rows[struct{ Name, Guarded string }](ctx, in, subscriptionsSQL)
	if err != nil {
		return nil, err
	}
	for _, s := range subscriptions {
		f := Finding{Grade: Note, Says: "the subscription " + s.Name + " writes here, into no guarded table", Means: means}
		if s.Guarded != "" {
			f = Finding{Grade: Warning, Says: "the subscription " + s.Name + " writes into guarded tables: " + s.Guarded, Means: means, Remedy: remedy}
		}
		found = append(found, f)
	}
	extensions, err := column(ctx, in, replicatingExtensionsSQL)
	if err != nil {
		return found, err
	}
	for _, name := range extensions {
		found = append(found, Finding{Grade: Warning, Says: "the extension " + name + " may write into guarded tables", Means: means, Remedy: remedy})
	}
	return finding.OrFine(found, "nothing is replicated to here"), nil
}
