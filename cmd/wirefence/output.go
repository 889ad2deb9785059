package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// OutputSettings are those of every command that prints what it has found or done. The
// fields of the JSON are below, and docs/reference/cli.md documents them.
type OutputSettings struct {
	Output string `env:"--output" short:"o" oneof:"text|json" envDefault:"text" help:"print for people or for programs"`
}

func (cfg OutputSettings) inJSON() bool { return cfg.Output == "json" }

// answer is what a command has found or done: for programs as JSON, for people as a text.
type answer struct {
	json any
	text func(w io.Writer) error
}

// sentence is an answer whose text is one line.
func sentence(json any, format string, args ...any) answer {
	return answer{json, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	}}
}

// table is an answer whose text has a line for each of all.
func table[T any](all []T, none, heading string, row func(T) []any) answer {
	return answer{all, func(w io.Writer) error { return printTable(w, all, none, heading, row) }}
}

// give prints an answer.
func (cfg OutputSettings) give(w io.Writer, a answer) error {
	if cfg.inJSON() {
		return printJSON(w, a.json)
	}
	return a.text(w)
}

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// printTable prints a row for each of all under a heading, or without any the line none. Cells are
// separated by tabs in the heading.
func printTable[T any](w io.Writer, all []T, none, heading string, row func(T) []any) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, none)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if heading != "" {
		fmt.Fprintln(t, heading)
	}
	for _, one := range all {
		var cells []string
		for _, value := range row(one) {
			cells = append(cells, cellOrDash(fmt.Sprint(value)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// cell is a text from outside for a cell of a table. It quotes one that could end the
// line, move the cursor or shift the columns, and leaves one that it has quoted.
func cell(text string) string {
	if !utf8.ValidString(text) {
		return strconv.Quote(text)
	}
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// cellOrDash is a cell that is never empty.
func cellOrDash(text string) string {
	if text == "" {
		return "-"
	}
	return cell(text)
}

// ofGrant matches what lockclient.HolderOf puts behind a holder's name.
var ofGrant = regexp.MustCompile(`/[A-Z2-7]{26}$`)

// holderName is a holder without its grant's part, which makes tables wide.
func holderName(holder string) string {
	if at := ofGrant.FindStringIndex(holder); at != nil && at[0] > 0 {
		return holder[:at[0]]
	}
	return holder
}

// The output of commands as JSON. Fields may be added; those that are here keep their names,
// types and meanings. The tag says is the meaning in docs/reference/cli.md.

// statusJSON is a resource with its policy.
type statusJSON struct {
	fence.ResourceStatus
	PreemptAfter *float64 `json:"preempt_after_seconds" says:"policy: how long a newer token waits before it ends older transactions; null: for ever"`
}

func inJSON(r fence.ResourceStatus) statusJSON {
	out := statusJSON{ResourceStatus: r}
	if r.PreemptAfter != nil {
		seconds := r.PreemptAfter.Seconds()
		out.PreemptAfter = &seconds
	}
	return out
}

func allInJSON(all []fence.ResourceStatus) []statusJSON {
	rows := make([]statusJSON, len(all))
	for i, r := range all {
		rows[i] = inJSON(r)
	}
	return rows
}

// fullStatusJSON adds what isn't in the row of the resource.
type fullStatusJSON struct {
	statusJSON
	Lease    lease  `json:"lease" says:"whether the lease is held now"`
	Refused  int64  `json:"refused_last_hour" says:"writes that were refused in the last hour"`
	LetPass  int64  `json:"let_pass_last_hour" says:"writes in the last hour that passed in shadow mode only"`
	Database string `json:"database,omitempty" says:"the hosts and the name of the database, if there are several: those of WIREFENCE_SEAL_URLS, and those on nodes of Citus"`
}

// readyJSON is the answer of a proxy's probe.
type readyJSON struct {
	Ready  bool   `json:"ready" says:"whether the proxy is ready"`
	Reason string `json:"reason,omitempty" says:"why not"`
}

// rowClassJSON is a class of rows.
type rowClassJSON struct {
	fence.RowClass
	Refused int64 `json:"refused_last_hour" says:"statements that were refused in the last hour"`
	LetPass int64 `json:"let_pass_last_hour" says:"statements in the last hour that passed in shadow mode only"`
}

// declaredRowsJSON is a class of rows that was declared.
type declaredRowsJSON struct {
	Class string `json:"class" says:"its name"`
	Table string `json:"table" says:"the table, as it was named"`
	Mode  string `json:"mode" says:"enforce or shadow"`
}

// droppedRowsJSON is a class of rows whose declaration was taken back.
type droppedRowsJSON struct {
	Class string `json:"class" says:"its name"`
}

// shownJSON is all that is known of a resource.
type shownJSON struct {
	statusJSON
	Lease   lease                  `json:"lease" says:"whether the lease is held now"`
	Changes []fence.ResourceChange `json:"changes" says:"what operators declared and changed, the oldest first"`
}

// declaredJSON is a resource that was declared.
type declaredJSON struct {
	Resource string `json:"resource" says:"its name"`
	Declared bool   `json:"declared" says:"false: it was declared so before"`
}

// setJSON is what was changed.
type setJSON struct {
	Resource string                        `json:"resource,omitempty" says:"the resource; absent where all are meant"`
	Settings map[string][2]json.RawMessage `json:"settings" says:"by their names, each with its value before and after"`
}

// wasSet words a change, with a line for people before the settings.
func wasSet(resource fence.Resource, changed map[string][2]json.RawMessage, line string) answer {
	return answer{setJSON{string(resource), changed}, func(w io.Writer) error {
		fmt.Fprintln(w, line)
		printValues(w, changed)
		return nil
	}}
}

// printValues prints settings with their values before and after.
func printValues(w io.Writer, all map[string][2]json.RawMessage) {
	text := func(value json.RawMessage) string {
		if string(value) == "null" {
			return "-"
		}
		return cell(strings.Trim(string(value), `"`))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(w, "  %s: %s -> %s\n", name, text(all[name][0]), text(all[name][1]))
	}
}

// checkJSON is the answer to a check.
type checkJSON struct {
	Fence    string `json:"fence" says:"what was checked"`
	Current  bool   `json:"current" says:"whether the database accepts it"`
	SQLState string `json:"sqlstate,omitempty" says:"why not: a code of class WF"`
	Message  string `json:"message,omitempty" says:"the refusal's message"`
	Detail   string `json:"detail,omitempty" says:"its DETAIL"`
	Hint     string `json:"hint,omitempty" says:"its HINT"`
}

// checked words the answer to a check, which err refuses unless it is nil.
func checked(f fence.Fence, err error) checkJSON {
	out := checkJSON{Fence: f.String(), Current: err == nil, SQLState: string(fence.StateOf(err))}
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		out.Message, out.Detail, out.Hint = refusal.Message, refusal.Detail, refusal.Hint
	}
	return out
}

// revokedJSON is what a revocation has done.
type revokedJSON struct {
	Resource  string        `json:"resource" says:"its name"`
	Token     int64         `json:"token" says:"the new last token, which no holder has"`
	LockedOut string        `json:"locked_out,omitempty" says:"the holder of the last grant"`
	Former    int64         `json:"locked_out_token,omitempty" says:"with which token"`
	Ended     []fence.Ended `json:"ended" says:"transactions that were ended"`
	Freed     string        `json:"freed,omitempty" says:"whose lease was freed in the store"`
	NotFreed  string        `json:"not_freed,omitempty" says:"why the lease could not be freed"`
	Databases []revokedIn   `json:"databases,omitempty" says:"each database, if there are several; the tokens above are of the first that was reached"`
}

// revokedIn is what a revocation has done in one of several databases.
type revokedIn struct {
	Database string `json:"database" says:"its hosts and its name"`
	Token    int64  `json:"token,omitempty" says:"the new last token there"`
	Error    string `json:"error,omitempty" says:"why the holder may not be locked out there"`
}

// revoked words a revocation, which has reached some of its databases.
func revoked(resource fence.Resource, done lockclient.Revocation, reached []lockclient.Revoked) revokedJSON {
	first := reached[0]
	out := revokedJSON{Resource: string(resource), Token: int64(first.Token), LockedOut: first.LockedOut.Holder, Ended: []fence.Ended{}, Freed: done.Freed}
	if out.LockedOut != "" {
		out.Former = int64(first.LockedOut.Token)
	}
	if done.NotFreed != nil {
		out.NotFreed = done.NotFreed.Error()
	}
	for _, each := range done.Databases {
		out.Ended = append(out.Ended, each.Ended...)
		if len(done.Databases) == 1 {
			break
		}
		in := revokedIn{Database: each.Database, Token: int64(each.Token)}
		if each.Err != nil {
			in.Error = each.Err.Error()
		}
		out.Databases = append(out.Databases, in)
	}
	return out
}

// eventJSON is an event of the history.
type eventJSON struct {
	fence.Event
	Node string `json:"node,omitempty" says:"which node of Citus has recorded it, if each has the tokens"`
}

// migratedJSON is what a migration has done, or would do.
type migratedJSON struct {
	Before int      `json:"before" says:"the schema's version before; 0: there was none"`
	After  int      `json:"after" says:"its version afterwards"`
	DryRun bool     `json:"dry_run" says:"whether this was a dry run, which changes nothing and prints the SQL"`
	Steps  []string `json:"steps" says:"what was done, for people"`
	SQL    string   `json:"sql,omitempty" says:"with --dry-run: what would run"`
}

// protectedJSON is a table that was protected.
type protectedJSON struct {
	Table    string `json:"table" says:"the table, as it was named"`
	Resource string `json:"resource" says:"the resource, or the template, that a write needs a token of"`
	Mode     string `json:"mode" says:"enforce or shadow"`
}

// unprotectedJSON is a table whose guards were removed.
type unprotectedJSON struct {
	Table string `json:"table" says:"the table, as it was named"`
}
