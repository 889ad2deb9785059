package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/internal/manual"
	"github.com/wirefence/wirefence/internal/zombie"
)

// docPages are the pages on commands and settings in the folder docs/reference, by their paths.
func docPages(root *cobra.Command, docs string) (map[string]string, error) {
	const from, to = "<!-- `make cli` writes the tables from here -->\n", "\n<!-- to here -->"
	r := reference(root)
	commands, err := r.Markdown()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(docs, "settings.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	before, rest, begins := strings.Cut(string(page), from)
	_, after, ends := strings.Cut(rest, to)
	if !begins || !ends {
		return nil, fmt.Errorf("%s has no place for the tables of settings", path)
	}
	return map[string]string{filepath.Join(docs, "cli.md"): commands, path: before + from + r.Settings() + to + after}, nil
}

// reference is the source of the tables of settings and of docs/reference/cli.md.
func reference(root *cobra.Command) *manual.Reference {
	proxy, _, _ := root.Find([]string{"proxy"})
	return &manual.Reference{
		Root: root, Main: proxy, Meanings: meanings, Outputs: map[string][]manual.Output{
			"wirefence version":   {{Value: build{}}},
			"wirefence proxy":     {{When: "and `--check-config`", Value: checkedJSON{}}},
			"wirefence migrate":   {{Value: migratedJSON{}}},
			"wirefence protect":   {{Value: protectedJSON{}}},
			"wirefence unprotect": {{Value: unprotectedJSON{}}},
			"wirefence status": {{Value: []fullStatusJSON{}}, {When: "and `--guards`", Value: []fence.Guard{}},
				{When: "and `--rows`", Value: []rowClassJSON{}}, {When: "and `--ready`", Value: readyJSON{}}, {When: "and `--adopted`", Value: []adoptedJSON{}}},
			"wirefence rows declare":     {{Value: declaredRowsJSON{}}},
			"wirefence rows list":        {{Value: []rowClassJSON{}}},
			"wirefence rows drop":        {{Value: droppedRowsJSON{}}},
			"wirefence history":          {{When: "(with `--follow`, one object a line instead of the list)", Value: []eventJSON{}}},
			"wirefence resource list":    {{Value: []statusJSON{}}},
			"wirefence resource show":    {{Value: shownJSON{}}},
			"wirefence resource declare": {{Value: declaredJSON{}}},
			"wirefence carry-name":       {{Value: setJSON{}}},
			"wirefence resource set":     {{Value: setJSON{}}},
			"wirefence revoke":           {{Value: revokedJSON{}}},
			"wirefence check":            {{Value: checkJSON{}}},
			"wirefence zombie":           {{Value: zombie.Report{}}, {When: "and `--explore`", Value: zombie.Exploration{}}},
			"wirefence doctor":           {{Value: doctor.Report{}}},
		},
		Intro: `This page is the reference of the command line. ` + "`wirefence COMMAND --help`" + ` and the manual pages
(` + "`make man`" + `) say the same. ` + "`make cli`" + ` writes it.

` + "`--output json` (`-o json`)" + ` prints for programs where a command has fields below. Fields may be added; those
that are listed keep their names, types and meanings. A field without a type is a string, one with ` + "`?`" + ` may be absent. Times
are RFC 3339. What is absent or null isn't known, or doesn't apply. An error is always text, on standard error.`,
	}
}

// meanings are those of fields of other packages' structs.
var meanings = map[string]string{
	"fence.RowClass.class": "its name",
	"fence.RowClass.table": "the table with the rows, as in SQL",
	"fence.RowClass.key":   "the columns by which a fence names a row",
	"fence.RowClass.claim": "the expression that a fence's claim is compared with",
	"fence.RowClass.while": "the condition that the row must meet",
	"fence.RowClass.until": "the expression of the time in UTC at which a claim ends, if sidecars may follow the rows",
	"fence.RowClass.mode":  "`enforce` or `shadow`",
	"fence.RowClass.by":    "the role that declared it",
	"fence.RowClass.since": "when that was",
	"fence.RowClass.fault": "why all its fences are refused",

	"fence.ResourceStatus.resource":         "its name",
	"fence.ResourceStatus.token":            "the highest token that was recorded",
	"fence.ResourceStatus.source":           "what counts its tokens",
	"fence.ResourceStatus.must_name_source": "whether tokens that don't name their source are refused",
	"fence.ResourceStatus.holder":           "the holder of the last grant; the lease may have ended since",
	"fence.ResourceStatus.since":            "when that was",
	"fence.ResourceStatus.advance":          "policy: `use` or `grant`",
	"fence.ResourceStatus.reuse":            "policy: `allow` or `once`",
	"fence.ResourceStatus.writers":          "open transactions that hold it",
	"fence.ResourceStatus.mode":             "policy: `enforce` or `shadow`",
	"fence.ResourceStatus.failover":         "policy: `reacquire` or `trust`",
	"fence.ResourceStatus.former":           "whether the database was promoted or restored since the last grant, so that no token is valid",

	"fence.ResourceChange.at":          "when",
	"fence.ResourceChange.by":          "the role",
	"fence.ResourceChange.application": "the session's application_name",
	"fence.ResourceChange.reason":      "why",
	"fence.ResourceChange.settings":    "by their names, each with its value before and after",

	"fence.Guard.table":    "the table, as in SQL",
	"fence.Guard.resource": "the resource, or the template, that a write needs a token of",
	"fence.Guard.mode":     "`enforce` or `shadow`",
	"fence.Guard.by":       "the role that protected it",
	"fence.Guard.since":    "when that was",
	"fence.Guard.fault":    "what is wrong with the guard",

	"fence.Event.id":             "the event's id, a UUID",
	"fence.Event.at":             "when it happened, the first of `count`",
	"fence.Event.last_at":        "when the last of `count` happened",
	"fence.Event.count":          "how many alike happened",
	"fence.Event.kind":           "`handoff`, `revocation`, `ended`, `refusal`, `shadow`, `bypass` or `dropped`",
	"fence.Event.state":          "the SQLSTATE of a refusal",
	"fence.Event.resource":       "the resource",
	"fence.Event.token":          "the new token of a handoff or a revocation, or the one that was refused",
	"fence.Event.current_token":  "the last token then; of a handoff or a revocation, before it",
	"fence.Event.source":         "what counts the token",
	"fence.Event.holder":         "the holder of the resource after a handoff",
	"fence.Event.former_holder":  "who had it before",
	"fence.Event.relation":       "the guarded table",
	"fence.Event.reason":         "why, as an operator said",
	"fence.Event.login":          "who was logged in",
	"fence.Event.application":    "the session's application_name",
	"fence.Event.address":        "the client's address",
	"fence.Event.pid":            "the server's process",
	"fence.Event.proxy":          "the proxy that recorded it",
	"fence.Event.database":       "the session's database, where it is another than this one",
	"fence.Event.traceparent":    "the trace of the statement (W3C Trace Context)",
	"fence.Event.waited_seconds": "how long a handoff or a revocation took",

	"fence.Ended.pid":         "the server's process",
	"fence.Ended.login":       "who was logged in",
	"fence.Ended.application": "the session's application_name",

	"doctor.Result.check":    "the name of the check, which is stable",
	"doctor.Result.grade":    "the worst of its findings",
	"doctor.Result.findings": "what it has found, one at least",
	"finding.Finding.grade":  "the grade of this finding",
	"finding.Finding.says":   "what was found; the text may change",
	"finding.Finding.means":  "what follows from it; the text may change",
	"finding.Finding.remedy": "commands and SQL that mend it, in order",
}
