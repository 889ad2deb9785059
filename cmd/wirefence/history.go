package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/follow"
)

type historySettings struct {
	ResourceSettings
	Since  string   `env:"--since" type:"when" help:"only events since: a duration such as 2h or 30d, or a time in UTC such as 2006-01-02, '2006-01-02 15:04' or 2006-01-02T15:04:05Z"`
	Kinds  []string `env:"--kind" type:"kind,..." help:"only these kinds, separated by commas: handoff, revocation, ended, refusal, shadow, bypass, dropped"`
	Limit  int      `env:"--limit" envDefault:"100" range:"1..1000000" help:"print at most this many events, the newest"`
	Follow bool     `env:"--follow" help:"keep running and print each new event once, until a signal"`
}

func historyCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "history [flags] [RESOURCE]",
		Short: "Show who took resources over, and whose writes were refused",
		Long: `Prints the history that the database keeps, the newest last: handoffs, revocations, and
the refusals that proxies have seen; without a proxy, the last four since the last look.
Below them is the number of events that could not be recorded, if any. If each node of
Citus has the tokens, the events of all nodes are printed.`,
		Args: atMostOne("one resource or none"),
	}, func(c *cobra.Command, cfg historySettings, args []string) error {
		filter, err := cfg.filter(args)
		if err != nil {
			return usageError{err}
		}
		return onNodes(c.Context(), cfg.DatabaseURL, func(nodes []node, failed error) error {
			if cfg.Follow && failed != nil {
				return failed
			}
			for _, node := range nodes {
				if err := fence.CollectRefusals(c.Context(), node); err != nil {
					return err
				}
			}
			if cfg.Follow {
				return followHistory(c.Context(), nodes, filter, cfg.inJSON(), c.OutOrStdout())
			}
			return errors.Join(printHistory(c.Context(), nodes, filter, cfg.inJSON(), c.OutOrStdout()), failed)
		})
	})
}

func (cfg historySettings) filter(args []string) (f fence.EventFilter, err error) {
	if len(args) == 1 {
		if f.Resource, err = parseResource(args[0]); err != nil {
			return f, err
		}
	}
	f.Limit = cfg.Limit
	var kinds []string
	for _, kind := range cfg.Kinds {
		if kind = strings.TrimSpace(kind); kind != "" {
			kinds = append(kinds, kind)
		}
	}
	if f.Kinds, err = fence.ParseEventKinds(kinds); err != nil {
		return f, err
	}
	if cfg.Since != "" {
		f.Since, err = sinceWhen(cfg.Since, time.Now())
	}
	return f, err
}

// sinceWhen parses a time, or a duration before now.
func sinceWhen(text string, now time.Time) (time.Time, error) {
	if age, is := parseAge(text); is && age > 0 {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly, "2006-01-02 15:04", time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q is neither a duration such as 2h or 30d nor a time such as 2006-01-02, '2006-01-02 15:04' or 2006-01-02T15:04:05Z", text)
}

func printHistory(ctx context.Context, nodes []node, f fence.EventFilter, asJSON bool, w io.Writer) error {
	wanted := f.Limit
	if !asJSON {
		f.Limit++ // to tell whether there are more
	}
	all, err := historyOf(ctx, nodes, f)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, append([]eventJSON{}, all...))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, nothingIn(f))
	} else if err := printEvents(w, all[max(0, len(all)-wanted):]); err != nil {
		return err
	}
	if len(all) > wanted {
		fmt.Fprintf(w, "Only the newest %d are shown: --limit shows more.\n", wanted)
	}
	for _, node := range nodes {
		totals, err := fence.TotalsOfHistory(ctx, node)
		if err != nil {
			return err
		}
		printMissing(w, node.name, f, totals)
	}
	return nil
}

// historyOf returns the events of all nodes, the newest last.
func historyOf(ctx context.Context, nodes []node, f fence.EventFilter) (all []eventJSON, err error) {
	for _, node := range nodes {
		events, err := fence.History(ctx, node, f)
		if err != nil {
			return nil, err
		}
		all = append(all, node.events(events)...)
	}
	all = inOrder(all)
	return all[max(0, len(all)-f.Limit):], nil
}

func inOrder(all []eventJSON) []eventJSON {
	slices.SortStableFunc(all, func(a, b eventJSON) int { return a.At.Compare(b.At) })
	return all
}

// events leaves out the grants that a worker was told of: they are the coordinator's.
func (n node) events(all []fence.Event) (events []eventJSON) {
	for _, e := range all {
		if !n.worker || e.Kind != fence.Handoff && e.Kind != fence.Revocation {
			events = append(events, eventJSON{e, n.name})
		}
	}
	return events
}

// printMissing prints how many events the history lacks, of a node if there are several.
func printMissing(w io.Writer, node string, f fence.EventFilter, totals fence.HistoryTotals) {
	missing := "Not recorded"
	if node != "" {
		missing += " on " + node
	}
	if f.Resource != "" {
		missing += ", of whatever resource"
	}
	switch {
	case totals.Unrecorded == 0:
	case totals.UnrecordedAt.IsZero():
		fmt.Fprintf(w, "%s: %d of %d refusals that the database has raised. No proxy records them here, or not yet; without one only the last four are kept.\n", missing, totals.Unrecorded, totals.Raised)
	case totals.UnrecordedAt.After(f.Since):
		fmt.Fprintf(w, "%s: %d of %d refusals that the database has raised, the last before %s: for writes around the proxies, or ones whose proxy could not record them.\n",
			missing, totals.Unrecorded, totals.Raised, totals.UnrecordedAt.UTC().Format(time.RFC3339))
	}
	if totals.Dropped > 0 {
		fmt.Fprintf(w, "%s: %d handoffs, ended transactions or notes of shadow mode, ever, for the history was locked or could not be written.\n", missing, totals.Dropped)
	}
}

func nothingIn(f fence.EventFilter) string {
	of := "in the history"
	if f.Resource != "" {
		of = "recorded of " + cell(string(f.Resource))
	}
	if f.Resource != "" && f.Since.IsZero() && len(f.Kinds) == 0 {
		return "Nothing is " + of + "."
	}
	return "No matching events are " + of + "."
}

var eventHeading = []string{"AT", "KIND", "RESOURCE", "TOKEN", "CURRENT", "HOLDER", "SESSION", "TIMES", "WHAT"}

func eventCells(e eventJSON) []string {
	return []string{
		e.At.UTC().Format("2006-01-02T15:04:05.000Z"), cell(string(e.Kind)), cellOrDash(string(e.Resource)), tokenText(e.Token), tokenText(e.CurrentToken),
		cellOrDash(holderName(e.Holder)), sessionText(e), strconv.FormatInt(e.Count, 10), whatText(e),
	}
}

func printEvents(w io.Writer, all []eventJSON) error {
	t := tabwriter.NewWriter(w, 10, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(eventHeading, "\t"))
	for _, e := range all {
		fmt.Fprintln(t, strings.Join(eventCells(e), "\t"))
	}
	return t.Flush()
}

func tokenText(token fence.Token) string {
	if token == 0 {
		return "-"
	}
	return token.String()
}

// sessionText is the login, the client's address and the application's name.
func sessionText(e eventJSON) string {
	text := cell(e.Login)
	if e.Address != "" {
		text += "@" + e.Address
	}
	if e.Application != "" {
		text += " " + cell(e.Application)
	}
	return cmp.Or(text, "-")
}

// noticed is the shortest wait of a handoff that is printed.
const noticed = 10 * time.Millisecond

// whatText has the remaining fields of an event. The server's log names the process, too.
func whatText(e eventJSON) string {
	var all []string
	if e.Kind == fence.HolderEnded {
		all = append(all, "ended to let a newer token in")
	}
	for _, part := range []struct{ label, text string }{
		{"", string(e.State)}, {"", e.Reason}, {"from ", holderName(e.FormerHolder)}, {"on ", e.Table}, {"in database ", e.Database}, {"reported by ", e.Proxy}, {"on node ", e.Node},
	} {
		if part.text != "" {
			all = append(all, part.label+cell(part.text))
		}
	}
	if waited := time.Duration(e.WaitedSeconds * float64(time.Second)); waited >= noticed {
		all = append(all, "after "+waited.Round(time.Millisecond).String())
	}
	if e.PID != 0 {
		all = append(all, fmt.Sprint("process ", e.PID))
	}
	if e.TraceParent != "" {
		all = append(all, "traceparent "+cell(e.TraceParent))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

// followLimit bounds the events of one look.
const followLimit = 1_000_000

// followHistory prints the recorded events, and each new one until ctx ends.
func followHistory(ctx context.Context, nodes []node, filter fence.EventFilter, asJSON bool, w io.Writer) error {
	followers := make([]follow.Follower, len(nodes))
	for i := range followers {
		followers[i].Filter = filter
		followers[i].Filter.Limit = followLimit
	}
	for first := true; ; first = false {
		var fresh []eventJSON
		var err error
		for i, node := range nodes {
			var events []fence.Event
			if events, err = poll(ctx, &followers[i], node, first, filter); err != nil {
				break
			}
			fresh = append(fresh, node.events(events)...)
		}
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		fresh = inOrder(fresh)
		if first {
			fresh = fresh[max(0, len(fresh)-filter.Limit):]
		}
		if err := printFresh(fresh, first, asJSON, w); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(follow.Pause):
		}
	}
}

// poll returns the events that are new, and the first time those that are there, for which the
// filter's limit counts.
func poll(ctx context.Context, f *follow.Follower, node node, first bool, filter fence.EventFilter) ([]fence.Event, error) {
	since, err := f.Since(ctx, node)
	if err != nil {
		return nil, err
	}
	fresh, err := f.Events(ctx, node, since)
	if !first || err != nil {
		return fresh, err
	}
	if fresh, err = fence.History(ctx, node, filter); err == nil {
		f.Saw(fresh)
	}
	return fresh, err
}

func printFresh(all []eventJSON, heading, asJSON bool, w io.Writer) error {
	if asJSON {
		lines := json.NewEncoder(w)
		for _, e := range all {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	if heading {
		fixedWidth(&b, eventHeading)
	}
	for _, e := range all {
		fixedWidth(&b, eventCells(e))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// eventWidths are those of the columns where the rows to come aren't known, but for
// the last.
var eventWidths = [...]int{24, 10, 20, 10, 10, 20, 32, 5}

func fixedWidth(b *strings.Builder, cells []string) {
	for i, width := range eventWidths {
		fmt.Fprintf(b, "%-*s  ", width, cells[i])
	}
	b.WriteString(cells[len(eventWidths)] + "\n")
}
