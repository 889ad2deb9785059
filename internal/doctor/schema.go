package doctor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/lockclient/finding"
	"github.com/wirefence/wirefence/migrations"
)

// schemaChecks examine the schema and the roles.
var schemaChecks = []Check{
	{schemaVersion, []string{databaseReachable}, checkSchemaVersion},
	{"schema.objects", []string{schemaVersion}, checkSchemaObjects},
	{"roles.prepared", []string{databaseReachable}, checkPrepared},
	{"roles.issuer", []string{schemaVersion}, checkIssuer},
	{"roles.owner", []string{schemaVersion}, checkOwner},
	{"roles.superusers", []string{databaseReachable}, checkSuperusers},
}

func checkSchemaVersion(ctx context.Context, in *Input) ([]Finding, error) {
	differs, err := onConnection(ctx, in, func(conn *pgx.Conn) (*migrations.VersionError, error) { return migrations.Usable(ctx, conn) })
	if differs != nil && (err == nil || errors.As(err, new(*migrations.ContentError))) {
		return oneApart(differs), nil
	}
	switch lacks := (*migrations.ContentError)(nil); {
	case err == nil, errors.As(err, &lacks): // schema.objects reports what is missing
		return finding.Fine("the schema is at version %d, as this binary needs it", migrations.Version()), nil
	case errors.Is(err, migrations.ErrNoVersion):
		return []Finding{{Grade: Problem, Says: "the schema has no version", Means: "A dump was restored without its data. The record of granted tokens is lost.",
			Remedy: []string{"restore the rows of the schema wirefence, too", "or DROP SCHEMA wirefence CASCADE, which removes all guards, and wirefence migrate"}}}, nil
	case !errors.As(err, &differs):
		return nil, schemaRight(err)
	}
	f := Finding{Grade: Problem, Remedy: []string{"wirefence migrate"}}
	switch {
	case differs.Missing():
		f.Says, f.Means = "the database has no wirefence schema", "Checks fail there, and so does every fenced write."
	case differs.Behind():
		f.Says = fmt.Sprintf("the schema is at version %d, this binary needs version %d", differs.Have, differs.Need)
		f.Means = tooFar
	default:
		f.Says = fmt.Sprintf("the schema is at version %d, this binary knows version %d", differs.Have, differs.Need)
		f.Means, f.Remedy = tooFar, []string{"upgrade this binary to the release that migrated the database"}
	}
	return []Finding{f}, nil
}

const tooFar = "The proxy isn't ready with a schema that is more than one version from its own."

// oneApart returns the finding about a schema that is one version from the binary's, as during
// a rollout or a rollback.
func oneApart(differs *migrations.VersionError) []Finding {
	f := Finding{Grade: Warning, Says: differs.Error(), Means: "Everything works, as during a rollout. The release after the next won't work with this schema.",
		Remedy: []string{"wirefence migrate, with the newer release"}}
	if differs.Ahead() {
		f.Remedy = []string{"upgrade this binary to the release that migrated the database"}
	}
	return []Finding{f}
}

// schemaRight says what else than wirefence_issuer an error may speak of: that the
// schema itself is closed.
func schemaRight(err error) error {
	if text := err.Error(); strings.Contains(text, "permission denied for schema wirefence") {
		return &finding.MissingRight{What: text, Remedy: []string{"GRANT USAGE ON SCHEMA wirefence TO PUBLIC"}}
	}
	return err
}

// checkSchemaObjects compares functions, tables and rights with the binary's migrations.
func checkSchemaObjects(ctx context.Context, in *Input) ([]Finding, error) {
	var differs *migrations.VersionError
	drifts, err := onConnection(ctx, in, func(conn *pgx.Conn) (drifts []migrations.Drift, err error) {
		if differs, err = migrations.Usable(ctx, conn); differs == nil {
			drifts, err = migrations.Drifts(ctx, conn)
		}
		return drifts, err
	})
	if differs != nil {
		if lacks := (*migrations.ContentError)(nil); errors.As(err, &lacks) {
			return []Finding{{Grade: Problem, Says: "function " + lacks.Missing[0] + " is missing", Means: "Calls that need it fail.",
				Remedy: []string{"run wirefence doctor of the release that migrated the database: it reports how to create the function"}}}, nil
		}
		return []Finding{{Grade: Note, Says: "not compared: the schema has another version"}}, nil
	}
	if err != nil {
		return nil, schemaRight(err)
	}
	var found []Finding
	for _, d := range drifts {
		f := Finding{Grade: Problem, Says: d.Object + ": " + d.Fault, Means: "Fences are checked by other rules than those of this binary.", Remedy: d.Remedy}
		switch {
		case d.Harmless:
			f.Grade, f.Means = Warning, "It changes no verdict. Wirefence did not grant or create it."
		case strings.Contains(d.Fault, " has "):
			f.Means = "A role with that right can change tokens or verdicts, so that a former holder can write."
		case strings.Contains(d.Fault, " lacks "):
			f.Means = "Calls that need it fail: checks, and with them fenced writes, or grants."
		}
		if onlyOfHistory(d) {
			f.Grade, f.Means = Warning, "Handoffs are not recorded in the history. Fences are checked as before."
		}
		found = append(found, f)
	}
	return finding.OrFine(found, "functions, tables and rights are as this binary installs them"), nil
}

// onlyOfHistory reports whether a drift affects only the records of handoffs.
func onlyOfHistory(d migrations.Drift) bool {
	return strings.Contains(d.Fault, "note_handoff") || strings.Contains(d.Fault, "note_first") ||
		d.Object == "wirefence.history" && strings.Contains(d.Fault, "missing")
}

// checkPrepared looks for missing steps of the preparation, which needs a superuser.
func checkPrepared(ctx context.Context, in *Input) ([]Finding, error) {
	steps, err := onConnection(ctx, in, func(conn *pgx.Conn) ([]string, error) { return migrations.Unprepared(ctx, conn) })
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, step := range steps {
		f := Finding{Grade: Problem, Says: "not done: " + step, Remedy: []string{step}}
		switch {
		case strings.HasPrefix(step, "GRANT pg_signal_backend"):
			f.Says = "wirefence_owner may not end backends"
			f.Means = "A stuck transaction of a former holder delays the next holder for ever, instead of for preempt_after."
		case strings.HasPrefix(step, "GRANT pg_read_all_stats"):
			f.Grade, f.Says = Warning, "wirefence_owner may not see which backends are idle"
			f.Means = "A takeover waits preempt_after for the idle session of a frozen proxy, instead of less than half a second."
		case strings.HasPrefix(step, "CREATE ROLE "):
			f.Says = "the role " + strings.Fields(step)[2] + " doesn't exist"
			f.Means, f.Remedy = "Nobody can use the rights that are granted to it.", []string{"wirefence migrate"}
		case strings.HasPrefix(step, "CREATE SCHEMA"):
			continue // schema.version reports it
		default:
			f.Means = "Another role can replace the functions that check fences."
		}
		found = append(found, f)
	}
	return finding.OrFine(found, "the roles are there, and wirefence_owner may end backends"), nil
}

//go:embed sql/issuer.sql
var issuerSQL string

func checkIssuer(ctx context.Context, in *Input) ([]Finding, error) {
	me, err := row[struct {
		Role                     string
		Superuser, Issuer, Owner bool
	}](ctx, in, issuerSQL)
	switch {
	case err != nil:
		return nil, err
	case !me.Issuer:
		return []Finding{{
			Grade: Problem, Says: fmt.Sprintf("%s is no member of wirefence_issuer", me.Role),
			Means:  "The role of WIREFENCE_DATABASE_URL can't seal grants, revoke, or see resources: no lease is granted.",
			Remedy: []string{"GRANT wirefence_issuer TO " + in.role()},
		}}, nil
	case me.Superuser, me.Owner:
		f := Finding{
			Grade: Warning, Says: fmt.Sprintf("%s is a superuser", me.Role),
			Means:  "The proxy and lock clients can change tokens, functions and guards with it. wirefence_issuer is all that they need.",
			Remedy: []string{"CREATE ROLE wirefence LOGIN PASSWORD '…' IN ROLE wirefence_issuer, and set WIREFENCE_DATABASE_URL to it; WIREFENCE_OWNER_URL is for migrations"},
		}
		if !me.Superuser {
			f.Says = fmt.Sprintf("%s has wirefence_owner", me.Role)
		}
		return []Finding{f}, nil
	}
	return finding.Fine("%s has wirefence_issuer, and is neither a superuser nor wirefence_owner", me.Role), nil
}

//go:embed sql/members.sql
var membersSQL string

// checkOwner reports the roles that can change tokens and verdicts.
func checkOwner(ctx context.Context, in *Input) ([]Finding, error) {
	names, err := column(ctx, in, membersSQL, "wirefence_owner")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return finding.Fine("nobody but superusers can act as wirefence_owner"), nil
	}
	return []Finding{{
		Grade: Note, Says: "can act as wirefence_owner: " + strings.Join(names, ", "),
		Means:  "They can change tokens and functions. The migrating role must be among them, and no application's role.",
		Remedy: []string{"REVOKE wirefence_owner FROM " + pgx.Identifier{names[0]}.Sanitize() + ", unless it migrates"},
	}}, nil
}

// checkSuperusers reports the roles that no right restricts.
func checkSuperusers(ctx context.Context, in *Input) ([]Finding, error) {
	names, err := column(ctx, in, "SELECT rolname::text FROM pg_roles WHERE rolsuper AND rolcanlogin ORDER BY 1")
	if err != nil {
		return nil, err
	}
	return finding.Fine("superusers, which are checked like other roles but may switch guards off: %s", strings.Join(names, ", ")), nil
}
