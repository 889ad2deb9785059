package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// sessionChecks look for transactions that hold a resource and delay its next holder.
var sessionChecks = []Check{
	{"sessions.prepared", []string{schemaVersion}, checkPreparedTransactions},
	{"sessions.idle", []string{schemaVersion}, checkIdleSessions},
	{"sessions.names", []string{schemaVersion}, checkNamesCount},
	{"sessions.settings", []string{databaseReachable}, judging((*Input).presets, judgePresets)},
	{"sessions.code", []string{schemaVersion}, judging((*Input).code, judgeCode)},
}

// checkNamesCount tells whether a fence in application_name counts.
func checkNamesCount(ctx context.Context, in *Input) ([]Finding, error) {
	switch counts, err := fence.CarriesName(ctx, in.Database); {
	case err != nil:
		return nil, err
	case counts:
		return finding.Fine("a fence in application_name counts: wirefence doctor --through URL tries what a pooler does with names"), nil
	}
	return finding.Fine("a fence in application_name doesn't count"), nil
}

//go:embed sql/prepared.sql
var preparedSQL string

// prepared is a prepared transaction that was checked for a resource.
type prepared struct {
	Gid      string
	Resource string
	Since    time.Time
	Age      float64 // s
}

// checkPreparedTransactions reports prepared transactions older than the resource's
// preempt_after.
func checkPreparedTransactions(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := rows[prepared](ctx, in, preparedSQL)
	if err != nil {
		return nil, err
	}
	waits, err := in.waits(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Age <= waits.of(p.Resource).Seconds() {
			continue // its coordinator may still end it
		}
		gid := literal(p.Gid)
		found = append(found, Finding{Grade: Problem,
			Says:   fmt.Sprintf("prepared transaction %s holds resource %q since %s", gid, p.Resource, p.Since.UTC().Format(time.RFC3339)),
			Means:  "No takeover of the resource is possible until it ends; a takeover can't end it.",
			Remedy: []string{fmt.Sprintf("COMMIT PREPARED %s or ROLLBACK PREPARED %s, as its coordinator has decided", gid, gid)}})
	}
	return finding.OrFine(found, "no prepared transaction holds a resource for long"), nil
}

//go:embed sql/idle.sql
var idleSQL string

// idle is a session that is idle in a transaction that holds a resource.
type idle struct {
	Pid         int32
	Resource    string
	User        string
	Hidden      bool // wirefence_owner may not see whether the session is idle
	Application string
	Idle        float64 // s, in the transaction without a statement
	Superuser   bool
}

func checkIdleSessions(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := rows[idle](ctx, in, idleSQL)
	if err != nil {
		return nil, err
	}
	waits, err := in.waits(ctx)
	if err != nil {
		return nil, err
	}
	hidden := 0
	pids := map[int32]bool{}
	for _, s := range all {
		pids[s.Pid] = true
		wait := time.Duration(s.Idle * float64(time.Second)).Round(time.Millisecond)
		switch {
		case s.Hidden:
			hidden++
		case wait <= waits.of(s.Resource):
		case s.Superuser:
			found = append(found, Finding{Grade: Problem,
				Says:   fmt.Sprintf("process %d, of the superuser %s, is idle for %v in a transaction that holds resource %q", s.Pid, s.User, wait, s.Resource),
				Means:  "wirefence_owner may not end a superuser's session: no takeover is possible.",
				Remedy: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.Pid)}})
		default:
			found = append(found, Finding{Grade: Warning,
				Says:   fmt.Sprintf("process %d, of %s (%s), is idle for %v in a transaction that holds resource %q", s.Pid, s.User, s.Application, wait, s.Resource),
				Means:  "The next holder has to wait for preempt_after; then the takeover ends this transaction, and its writes are rolled back.",
				Remedy: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d), or end the transaction in its application", s.Pid)}})
		}
	}
	found = firstOf(found, Finding{Says: "and %d more that are idle for a shorter time", Means: "They delay the next holder in the same way."})
	if hidden > 0 {
		return found, &finding.MissingRight{
			What:   fmt.Sprintf("sessions that hold a resource: %d; whether they are idle wirefence_owner may not see", hidden),
			Remedy: []string{"GRANT pg_read_all_stats TO wirefence_owner"},
		}
	}
	return finding.OrFine(found, "sessions that hold a resource: %d, and none is stuck", len(pids)), nil
}

//go:embed sql/presets.sql
var presetsSQL string

// preset is a setting with which the sessions of a role or a database begin.
type preset struct{ Name, Whose, Remedy string }

func (in *Input) presets(ctx context.Context) ([]preset, error) {
	return rows[preset](ctx, in, presetsSQL)
}

// judgePresets reports misspelt settings of Wirefence. The proxy refuses them in texts and
// startup packets, and can't see those of roles and databases.
func judgePresets(_ *Input, all []preset) (found []Finding) {
	for _, p := range all {
		if fence.IsSetting(p.Name) {
			continue
		}
		found = append(found, Finding{Grade: Problem,
			Says:   fmt.Sprintf("unknown setting %q for %s", p.Name, p.Whose),
			Means:  "Nothing reads it: if it is meant as a fence, those sessions write without one. The fence's setting is " + fence.Variable + ".",
			Remedy: []string{p.Remedy}})
	}
	return finding.OrFine(found, "no role and no database has a setting of Wirefence that nothing reads")
}

//go:embed sql/code.sql
var codeSQL string

// code is a function of the application that may change what a session carries or holds.
type code struct {
	Name    string
	Unlocks bool // it releases advisory locks, otherwise it names the variable
}

func (in *Input) code(ctx context.Context) ([]code, error) { return rows[code](ctx, in, codeSQL) }

// judgeCode reports code in the database, which the proxy doesn't follow.
func judgeCode(_ *Input, all []code) (found []Finding) {
	var fences, unlocks []string
	for _, c := range all {
		if c.Unlocks {
			unlocks = append(unlocks, c.Name)
		} else {
			fences = append(fences, c.Name)
		}
	}
	if len(fences) > 0 {
		found = append(found, Finding{Grade: Note,
			Says:   "functions that name " + fence.Variable + ": " + listed(fences),
			Means:  "The proxy doesn't follow code in the database: what runs behind such a function in the same message is checked for the fence that the session carried before.",
			Remedy: []string{"wirefence protect TABLE, for each table that such code writes"}})
	}
	if len(unlocks) > 0 {
		found = append(found, Finding{Grade: Note,
			Says:   "functions that may release a session's advisory locks: " + listed(unlocks),
			Means:  "Sessions of this database don't hold their fence: each transaction is checked, which is safe and slower.",
			Remedy: []string{"let them release the locks that they took, by pg_advisory_unlock(key)"}})
	}
	return finding.OrFine(found, "no function names "+fence.Variable+" or releases all advisory locks")
}

// waits has the preempt_after of each resource.
type waits map[string]time.Duration

// defaultPreempt is the default preempt_after; it also stands in for `never`.
const defaultPreempt = 5 * time.Second

func (w waits) of(resource string) time.Duration {
	if wait, known := w[resource]; known {
		return wait
	}
	return defaultPreempt
}

func (w waits) longest() time.Duration {
	longest := defaultPreempt
	for _, wait := range w {
		longest = max(longest, wait)
	}
	return longest
}

func (in *Input) waits(ctx context.Context) (waits, error) {
	all, err := in.resources(ctx)
	w := waits{}
	for _, r := range all {
		if r.PreemptAfter != nil {
			w[string(r.Resource)] = *r.PreemptAfter
		}
	}
	return w, err
}

// literal quotes a text for SQL.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
