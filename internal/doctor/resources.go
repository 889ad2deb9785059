package doctor

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// resourceChecks examine what the database has recorded about resources.
var resourceChecks = []Check{
	{"resources.holders", []string{schemaVersion}, judging((*Input).resources, judgeHolders)},
	{"resources.tokens", []string{schemaVersion}, judging((*Input).resources, judgeTokens)},
	{"resources.policies", []string{schemaVersion}, judging((*Input).resources, judgePolicies)},
	{"resources.sources", []string{schemaVersion}, checkSources},
	{"resources.takeovers", []string{schemaVersion}, judging((*Input).resources, judgeTakeovers)},
	{"resources.leases", []string{schemaVersion}, checkExpiredLeases},
	{"resources.unsealed", []string{schemaVersion}, checkUnsealed},
	{"history.refusals", []string{schemaVersion}, judging((*Input).refusals, judgeRefusals)},
	{"history.complete", []string{schemaVersion}, judging((*Input).historyTotals, judgeHistory)},
}

func (in *Input) resources(ctx context.Context) ([]fence.ResourceStatus, error) {
	return read(ctx, in, func(tx pgx.Tx) ([]fence.ResourceStatus, error) { return fence.Status(ctx, tx) })
}

// mostNamed bounds how many resources, tables or sessions a check names.
const mostNamed = 10

// firstOf cuts findings to the first mostNamed. If there are more, it appends rest with their
// number in place of %d in its text, and with the worst of their grades.
func firstOf(found []Finding, rest Finding) []Finding {
	if len(found) <= mostNamed {
		return found
	}
	for _, f := range found[mostNamed:] {
		rest.Grade = max(rest.Grade, f.Grade)
	}
	rest.Says = fmt.Sprintf(rest.Says, len(found)-mostNamed)
	return append(found[:mostNamed], rest)
}

// listed joins the first mostNamed names, with the number of the others.
func listed(names []string) string {
	text := strings.Join(names[:min(len(names), mostNamed)], ", ")
	if more := len(names) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// judgeHolders reports the resources with open transactions, and the holders of their last
// grants.
func judgeHolders(_ *Input, all []fence.ResourceStatus) (found []Finding) {
	for _, r := range all {
		if r.Writers == 0 {
			continue
		}
		holder := "an unknown holder"
		if r.Holder != "" {
			holder = fmt.Sprintf("%s at %s", r.Holder, r.Since.UTC().Format(time.RFC3339))
		}
		found = append(found, Finding{Grade: Note, Says: fmt.Sprintf("%s: token %d, last granted to %s, open transactions: %d", r.Resource, r.LastToken, holder, r.Writers)})
	}
	found = firstOf(found, Finding{Says: "and %d more resources with open transactions", Remedy: []string{"wirefence status"}})
	return finding.OrFine(found, "resources: %d, none with an open transaction", len(all))
}

// No counter reaches tokens above suspicious. Above exhausted, few tokens are left.
const (
	suspicious fence.Token = 1 << 62
	exhausted  fence.Token = math.MaxInt64 - 1_000_000_000
)

func judgeTokens(_ *Input, all []fence.ResourceStatus) (found []Finding) {
	highest := fence.Token(0)
	for _, r := range all {
		highest = max(highest, r.LastToken)
		if r.LastToken < suspicious {
			continue
		}
		f := Finding{Grade: Warning, Says: fmt.Sprintf("%s: its last token is %d", r.Resource, r.LastToken),
			Means: "No counter reaches that number: a client may have made it up. Tokens end at 9223372036854775807.",
			Remedy: []string{fmt.Sprintf("wirefence resource set %s --last-token N --advance grant --source SOURCE --reason 'its tokens had run up', "+
				"with N the last token that was really granted", quoted(string(r.Resource)))}}
		if r.LastToken > exhausted {
			f.Grade, f.Means = Problem, fmt.Sprintf("Only %d tokens are left; after them, the resource can't be granted. Tokens end at 9223372036854775807.", math.MaxInt64-r.LastToken)
		}
		found = append(found, f)
	}
	found = firstOf(found, Finding{Says: "and %d more resources with such tokens", Means: "Clients may have made them up.", Remedy: []string{"wirefence resource list"}})
	return finding.OrFine(found, "the highest token is %d", highest)
}

// longPreempt is the longest preempt_after that is not reported.
const longPreempt = time.Hour

func judgePolicies(_ *Input, all []fence.ResourceStatus) (found []Finding) {
	for _, r := range all {
		name := quoted(string(r.Resource))
		if r.Mode == fence.ModeShadow {
			found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("%s: it is in shadow mode", r.Resource),
				Means:  "Writes that should be refused are recorded in the history, and pass.",
				Remedy: []string{fmt.Sprintf("wirefence resource set %s --resource-mode enforce --reason 'the history records no more writes that should pass'", name)}})
		}
		if r.PreemptAfter == nil || *r.PreemptAfter > longPreempt {
			says := "never"
			if r.PreemptAfter != nil {
				says = r.PreemptAfter.String()
			}
			found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("%s: preempt_after is %s", r.Resource, says),
				Means:  "A stuck transaction of a former holder delays the next holder for that long.",
				Remedy: []string{fmt.Sprintf("wirefence resource set %s --preempt-after 5s --reason 'takeovers must not wait for stuck transactions'", name)}})
		}
		if r.Advance == fence.AdvanceOnUse && r.Holder != "" {
			found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("%s: grants are sealed, but a higher token counts from its first use, too", r.Resource),
				Means:  "A client can lock the holder out with any higher token.",
				Remedy: []string{fmt.Sprintf("wirefence resource set %s --advance grant --reason 'its grants are sealed'", name)}})
		}
	}
	found = firstOf(found, Finding{Says: "and %d more unusual policies", Means: "They have the same consequences.", Remedy: []string{"wirefence resource list"}})
	return finding.OrFine(found, "no policy is unusual")
}

func (in *Input) refusals(ctx context.Context) (map[fence.Resource]fence.RefusalCount, error) {
	return read(ctx, in, func(tx pgx.Tx) (map[fence.Resource]fence.RefusalCount, error) {
		return fence.RefusalsWithin(ctx, tx, time.Hour)
	})
}

// judgeRefusals reports the refusals of the last hour, the resource with the most of them first.
func judgeRefusals(_ *Input, counts map[fence.Resource]fence.RefusalCount) (found []Finding) {
	often := func(r fence.Resource) int64 { return counts[r].Refused + counts[r].LetPass }
	names := slices.SortedFunc(maps.Keys(counts), func(a, b fence.Resource) int {
		return cmp.Or(cmp.Compare(often(b), often(a)), cmp.Compare(a, b))
	})
	for _, name := range names[:min(len(names), mostNamed)] {
		label := string(name)
		if name == "" {
			label = "without a resource"
		}
		found = append(found, Finding{Grade: Note, Says: fmt.Sprintf("%s: refused in the last hour: %d, passed in shadow mode: %d",
			label, counts[name].Refused, counts[name].LetPass), Remedy: []string{"wirefence history --since 1h"}})
	}
	return finding.OrFine(found, "the history has no refusal of the last hour")
}

func (in *Input) historyTotals(ctx context.Context) (fence.HistoryTotals, error) {
	return read(ctx, in, func(tx pgx.Tx) (fence.HistoryTotals, error) { return fence.TotalsOfHistory(ctx, tx) })
}

// judgeHistory reports what is missing in the history, and whether it grows.
func judgeHistory(_ *Input, totals fence.HistoryTotals) (found []Finding) {
	if totals.Unrecorded > 0 {
		found = append(found, Finding{Grade: Note,
			Says:  fmt.Sprintf("%d of the %d refusals that the database has ever raised are not in the history", totals.Unrecorded, totals.Raised),
			Means: "Their sessions bypassed the proxy, or their proxy has no WIREFENCE_DATABASE_URL or could not write. The server's log has them."})
	}
	if totals.Dropped > 0 {
		found = append(found, Finding{Grade: Note,
			Says:  fmt.Sprintf("%d handoffs, ended transactions or notes of shadow mode, ever, are not in the history", totals.Dropped),
			Means: "The table wirefence.history was locked, or could not be written, when they happened."})
	}
	bound := 2 * totals.MaxRows // of the events that issuers cause, and of the others
	if excess := totals.Kept - bound; excess > bound/10+500 {
		found = append(found, Finding{Grade: Warning,
			Says:   fmt.Sprintf("the history has %d rows, more than the %d that it should keep", totals.Kept, bound),
			Means:  "It grows: each write to it prunes a few rows, and proxies with WIREFENCE_DATABASE_URL prune the rest every minute.",
			Remedy: []string{"run a proxy with WIREFENCE_DATABASE_URL, and look into its log", "SELECT wirefence.prune_history(), which deletes up to 10,000 at READ COMMITTED"}})
	}
	return finding.OrFine(found, "rows: %d of at most %d, kept for %s", totals.Kept, bound, daysText(totals.MaxAge))
}

// daysText writes two days or more in days, less as Go does.
func daysText(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

//go:embed sql/leases.sql
var leasesSQL string

// checkExpiredLeases counts leases in PostgreSQL that ended without a release.
func checkExpiredLeases(ctx context.Context, in *Input) ([]Finding, error) {
	n, err := row[struct{ Live, Expired int64 }](ctx, in, leasesSQL)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "0A000" {
		// An unlogged table can't be read on a standby.
		return []Finding{{Grade: Note, Says: "leases in PostgreSQL are on the primary alone"}}, nil
	} else if err != nil {
		return nil, err
	}
	if n.Expired > 0 {
		return []Finding{{Grade: Note, Says: fmt.Sprintf("leases in PostgreSQL that have expired and were not acquired again: %d; held: %d", n.Expired, n.Live),
			Means: "Their holders ended without a release, or were cut off. The next acquire gets them."}}, nil
	}
	return finding.Fine("leases in PostgreSQL that are held: %d; none has expired", n.Live), nil
}

//go:embed sql/unsealed.sql
var unsealedSQL string

// manyUnsealed is from how many resources on that nobody granted they are worth a note.
const manyUnsealed = 1000

// checkUnsealed counts the resources that the use of a token has made. Any role can make them.
func checkUnsealed(ctx context.Context, in *Input) ([]Finding, error) {
	n, err := row[struct{ Unsealed, All int64 }](ctx, in, unsealedSQL)
	if err != nil {
		return nil, err
	}
	if n.Unsealed >= manyUnsealed {
		return []Finding{{Grade: Note, Says: fmt.Sprintf("resources that the use of a token made, and of which no grant was sealed: %d of %d", n.Unsealed, n.All),
			Means:  "Each has a row for ever. Any role can make some by a check.",
			Remedy: []string{"wirefence resource forget --unused-for 30d"}}}, nil
	}
	return finding.Fine("resources that the use of a token made, and of which no grant was sealed: %d of %d", n.Unsealed, n.All), nil
}
