package main

import (
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/internal/manual"
)

// reference is the source of docs/cli.md and of the manual pages.
func reference(root *cobra.Command) *manual.Reference {
	return &manual.Reference{
		Root: root, Statuses: statuses, Meanings: meanings, Outputs: map[string][]manual.Output{
			"wirefence version":          {{Value: build{}}},
			"wirefence proxy":            {{When: "and `--check-config`", Value: checkedJSON{}}},
			"wirefence migrate":          {{Value: migratedJSON{}}},
			"wirefence protect":          {{Value: protectedJSON{}}},
			"wirefence unprotect":        {{Value: unprotectedJSON{}}},
			"wirefence status":           {{Value: []fullStatusJSON{}}, {When: "and `--guards`", Value: []guardJSON{}}, {When: "and `--ready`", Value: readyJSON{}}},
			"wirefence history":          {{When: "(with `--follow`, one object a line instead of the list)", Value: []fence.Event{}}},
			"wirefence resource list":    {{Value: []statusJSON{}}},
			"wirefence resource show":    {{Value: shownJSON{}}},
			"wirefence resource declare": {{Value: declaredJSON{}}},
			"wirefence resource set":     {{Value: setJSON{}}},
			"wirefence revoke":           {{Value: revokedJSON{}}},
			"wirefence check":            {{Value: checkJSON{}}},
			"wirefence doctor":           {{Value: doctor.Report{}}},
		},
		Intro: `This page is the reference of the command line. ` + "`make cli`" + ` writes it from the commands
themselves; ` + "`wirefence COMMAND --help`" + ` and the manual pages (` + "`make man`" + `) say the same.

Settings are environment variables, each with a flag of the same name, and a flag wins over
its variable. The arguments of one invocation are flags alone: a variable of such a name is
refused. A setting that may hold a password can be read from a file: the variable with
` + "`_FILE`" + ` behind its name, or the flag with ` + "`-file`" + `, names the file, which holds the value on one
line. Give either the value or the file.

Flags stand before the arguments. Durations are written as in ` + "`300ms`, `15s` or `2h`" + `.

` + "`--output json` (`-o json`)" + ` prints for programs. Fields may be added; those that are listed here
keep their names, types and meanings. Times are RFC 3339. What is absent or null isn't known,
or doesn't apply. An error is always text, on standard error.

` + "`wirefence completion bash`" + ` (or ` + "`zsh`, `fish`, `powershell`" + `) prints a script that completes
commands, flags, their values, and the names of resources, which it asks the database of
` + "`WIREFENCE_DATABASE_URL`" + ` for: ` + "`source <(wirefence completion bash)`" + `.`,
	}
}

// statuses are the exit statuses of commands; the root's are those of all others.
var statuses = map[string][]manual.Status{
	"wirefence": {
		{Code: "0", Meaning: "it is done"},
		{Code: "1", Meaning: "it failed; standard error says why"},
		{Code: "2", Meaning: "the command line, the environment or a file that they name is wrong; nothing was done"},
		{Code: "78", Meaning: "the database's schema is missing, or of a version too far from this one's"},
	},
	"wirefence proxy": {
		{Code: "0", Meaning: "it has drained after `SIGTERM` or `SIGINT`; with `--check-config`, the settings are good"},
		{Code: "1", Meaning: "it could not start to serve, or failed while it served"},
		{Code: "2", Meaning: "the command line, the environment or a file that they name is wrong"},
		{Code: "130, 143", Meaning: "a second `SIGINT` or `SIGTERM` ended it at once"},
	},
	"wirefence lock": {
		{Code: "of the command", Meaning: "the command has ended by itself; 128 and the signal's number if a signal ended it"},
		{Code: "2", Meaning: "wrong usage"},
		{Code: "69", Meaning: "the lease store or the database is down; the command was not started"},
		{Code: "75", Meaning: "another holds the lease; the command was not started"},
		{Code: "76", Meaning: "the lease was lost, and the command was ended"},
		{Code: "78", Meaning: "the set-up is wrong: the resource is another lock service's, or the schema is missing or too far from this version; the command was not started"},
		{Code: "126, 127", Meaning: "the command can't be run, or isn't there"},
	},
	"wirefence check": {
		{Code: "0", Meaning: "the fence is current"},
		{Code: "2", Meaning: "wrong usage"},
		{Code: "10", Meaning: "the database refuses it"},
		{Code: "69", Meaning: "the database could not be asked"},
	},
	"wirefence guard": {
		{Code: "of the command", Meaning: "the command has ended by itself, and the check was held until then; 128 and the signal's number if a signal ended it"},
		{Code: "2", Meaning: "wrong usage"},
		{Code: "10", Meaning: "the database refuses the fence; the command was not started"},
		{Code: "69", Meaning: "the database could not be asked; the command was not started"},
		{Code: "76", Meaning: "the check was lost, and the command was ended: its effect is in doubt"},
		{Code: "124", Meaning: "the command was ended for `--timeout`"},
		{Code: "126, 127", Meaning: "the command can't be run, or isn't there"},
	},
	"wirefence status": {
		{Code: "0", Meaning: "it is done; with `--ready`, the proxy is ready"},
		{Code: "1", Meaning: "it failed, or the resource isn't known; with `--ready`, the proxy isn't ready, or doesn't answer"},
		{Code: "2", Meaning: "wrong usage"},
	},
	"wirefence doctor": {
		{Code: "0", Meaning: "all is well. Warnings count as well, unless `--strict` is given"},
		{Code: "1", Meaning: "no problem, but a check could not be made"},
		{Code: "2", Meaning: "wrong usage"},
		{Code: "3", Meaning: "a problem; with `--strict`, a problem or a warning"},
	},
	"wirefence demo": {
		{Code: "0", Meaning: "both rounds went as they should"},
		{Code: "1", Meaning: "they didn't, or a server is missing"},
		{Code: "2", Meaning: "wrong usage"},
	},
}

// meanings are those of fields of other packages' structs.
var meanings = map[string]string{
	"fence.Event.id":             "the event's id, a UUID",
	"fence.Event.at":             "when it happened, the first of `count`",
	"fence.Event.last_at":        "when the last of `count` happened",
	"fence.Event.count":          "how many alike happened",
	"fence.Event.kind":           "`handoff`, `revocation`, `ended`, `refusal`, `shadow`, `bypass` or `dropped`",
	"fence.Event.state":          "the SQLSTATE of a refusal",
	"fence.Event.resource":       "the resource",
	"fence.Event.token":          "the new token of a handoff or a revocation, or the one that was refused",
	"fence.Event.current_token":  "the last token as it was then; of a handoff or a revocation, before it",
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
	"fence.Event.waited_seconds": "how long a handoff or a revocation took, mostly for older transactions",

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
