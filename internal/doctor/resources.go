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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// resourceChecks look at what is recorded of resources.
var resourceChecks = []Check{
	{"resources.holders", []string{schemaVersion}, checkHolders},
	{"resources.tokens", []string{schemaVersion}, checkTokens},
	{"resources.policies", []string{schemaVersion}, checkPolicies},
	{"resources.takeovers", []string{schemaVersion}, checkTakeovers},
	{"resources.leases", []string{schemaVersion}, checkExpiredLeases},
	{"history.refusals", []string{schemaVersion}, checkRefusals},
	{"history.complete", []string{schemaVersion}, checkHistory},
}

func (in *Input) resources(ctx context.Context) (all []fence.ResourceStatus, err error) {
	err = in.read(ctx, func(tx pgx.Tx) error {
		all, err = fence.Status(ctx, tx)
		return err
	})
	return all, err
}

// mostNamed is how many resources are told of one by one.
const mostNamed = 10

// checkHolders tells which resources are written under, and who was granted them last.
func checkHolders(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	busy := 0
	for _, r := range all {
		if r.Writers == 0 {
			continue
		}
		if busy++; busy > mostNamed {
			continue
		}
		holder := "nobody that is known"
		if r.Holder != "" {
			holder = fmt.Sprintf("%s at %s", r.Holder, r.Since.UTC().Format(time.RFC3339))
		}
		found = append(found, Finding{Grade: Note, Says: fmt.Sprintf("%s: token %d, last granted to %s, open transactions: %d", r.Resource, r.LastToken, holder, r.Writers)})
	}
	if busy > mostNamed {
		found = append(found, Finding{Grade: Note, Says: fmt.Sprintf("and %d more resources with open transactions", busy-mostNamed), Remedy: []string{"wirefence status"}})
	}
	return orFine(found, "resources: %d, none with an open transaction", len(all)), nil
}

// Tokens above suspicious were hardly counted by anybody; of those above
// exhausted few are left.
const (
	suspicious fence.Token = 1 << 62
	exhausted  fence.Token = math.MaxInt64 - 1_000_000_000
)

func checkTokens(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
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
		if len(found) == mostNamed {
			break
		}
	}
	return orFine(found, "the highest token is %d", highest), nil
}

// longPreempt is a preempt_after that hardly anybody means.
const longPreempt = time.Hour

func checkPolicies(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
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
		if len(found) >= mostNamed {
			found = append(found, Finding{Grade: Warning, Says: "there may be more", Remedy: []string{"wirefence resource list"}})
			break
		}
	}
	return orFine(found, "no policy is out of the ordinary"), nil
}

// checkRefusals tells what was refused lately, the most often refused first.
func checkRefusals(ctx context.Context, in *Input) (found []Finding, err error) {
	var counts map[fence.Resource]fence.RefusalCount
	if err := in.read(ctx, func(tx pgx.Tx) error {
		counts, err = fence.RefusalsWithin(ctx, tx, time.Hour)
		return err
	}); err != nil {
		return nil, err
	}
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
	return orFine(found, "the history has no refusal of the last hour"), nil
}

// checkHistory tells what the history lacks.
func checkHistory(ctx context.Context, in *Input) (found []Finding, err error) {
	var totals fence.HistoryTotals
	if err := in.read(ctx, func(tx pgx.Tx) error {
		totals, err = fence.TotalsOfHistory(ctx, tx)
		return err
	}); err != nil {
		return nil, err
	}
	if totals.Unrecorded > 0 {
		found = append(found, Finding{Grade: Note,
			Says:  fmt.Sprintf("%d of the %d refusals that the database has ever raised are not in the history", totals.Unrecorded, totals.Raised),
			Means: "They were of sessions that use no proxy, or of a proxy without WIREFENCE_DATABASE_URL, or one that could not write. The server's log has them."})
	}
	if totals.Dropped > 0 {
		found = append(found, Finding{Grade: Note,
			Says:  fmt.Sprintf("%d handoffs, ended transactions or notes of shadow mode, ever, are not in the history", totals.Dropped),
			Means: "The table wirefence.history was locked, or could not be written, when they happened."})
	}
	bound := 2 * totals.MaxRows // of what issuers bring about, and of all else
	if excess := totals.Kept - bound; excess > bound/10+500 {
		found = append(found, Finding{Grade: Warning,
			Says:   fmt.Sprintf("the history has %d rows, more than the %d that it is to keep", totals.Kept, bound),
			Means:  "It grows: each write to it prunes a few rows, and proxies with WIREFENCE_DATABASE_URL prune the rest every minute.",
			Remedy: []string{"run a proxy with WIREFENCE_DATABASE_URL, and look into its log", "SELECT wirefence.prune_history(), which deletes up to 10,000 at READ COMMITTED"}})
	}
	return orFine(found, "rows: %d of at most %d, kept for %s", totals.Kept, bound, daysText(totals.MaxAge)), nil
}

// daysText is a long time in days, a shorter one as Go writes it.
func daysText(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

//go:embed sql/leases.sql
var leasesSQL string

type leaseCounts struct{ Live, Expired int64 }

// checkExpiredLeases counts leases in PostgreSQL that ended without a release.
func checkExpiredLeases(ctx context.Context, in *Input) ([]Finding, error) {
	n, err := row[leaseCounts](ctx, in, leasesSQL)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "0A000" {
		// An unlogged table is empty on a standby, and not to be read.
		return []Finding{{Grade: Note, Says: "leases in PostgreSQL are on the primary alone"}}, nil
	} else if err != nil {
		return nil, err
	}
	if n.Expired > 0 {
		return []Finding{{Grade: Note, Says: fmt.Sprintf("leases in PostgreSQL that have expired and were not acquired again: %d; held: %d", n.Expired, n.Live),
			Means: "Their holders ended without a release, or were cut off. The next acquire gets them."}}, nil
	}
	return fine("leases in PostgreSQL that are held: %d; none has expired", n.Live), nil
}
