package doctor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/migrations"
)

// schemaChecks look at what migrations have made, and at the roles.
var schemaChecks = []Check{
	{schemaVersion, []string{databaseReachable}, checkSchemaVersion},
	{"schema.objects", []string{schemaVersion}, checkSchemaObjects},
	{"roles.prepared", []string{databaseReachable}, checkPrepared},
	{"roles.issuer", []string{schemaVersion}, checkIssuer},
	{"roles.owner", []string{schemaVersion}, checkOwner},
	{"roles.superusers", []string{databaseReachable}, checkSuperusers},
}

func (in *Input) onConnection(ctx context.Context, do func(conn *pgx.Conn) error) error {
	return in.Database.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return do(c.Conn()) })
}

func checkSchemaVersion(ctx context.Context, in *Input) ([]Finding, error) {
	var differs *migrations.VersionError
	err := in.onConnection(ctx, func(conn *pgx.Conn) (err error) {
		differs, err = migrations.Usable(ctx, conn)
		return err
	})
	if differs != nil && (err == nil || errors.As(err, new(*migrations.ContentError))) {
		return oneApart(differs), nil
	}
	switch lacks := (*migrations.ContentError)(nil); {
	case err == nil, errors.As(err, &lacks): // schema.objects names what is missing
		return fine("the schema is at version %d, as this binary needs it", migrations.Version()), nil
	case errors.Is(err, migrations.ErrNoVersion):
		return []Finding{{Grade: Problem, Says: "the schema is there, but not its version", Means: "A dump was restored without its data; which tokens were granted is lost.",
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

// oneApart tells of what is in order while a rollout or a rollback is under way.
func oneApart(differs *migrations.VersionError) []Finding {
	f := Finding{Grade: Warning, Says: differs.Error(), Means: "All works, as it does during a rollout. The next release but one won't.",
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
		return &missingRight{text, []string{"GRANT USAGE ON SCHEMA wirefence TO PUBLIC"}}
	}
	return err
}

// checkSchemaObjects compares functions, tables and rights with what this binary
// installs.
func checkSchemaObjects(ctx context.Context, in *Input) ([]Finding, error) {
	var drifts []migrations.Drift
	var differs *migrations.VersionError
	err := in.onConnection(ctx, func(conn *pgx.Conn) (err error) {
		if differs, err = migrations.Usable(ctx, conn); differs == nil {
			drifts, err = migrations.Drifts(ctx, conn)
		}
		return err
	})
	if differs != nil {
		if lacks := (*migrations.ContentError)(nil); errors.As(err, &lacks) {
			return []Finding{{Grade: Problem, Says: "function " + lacks.Missing[0] + " is missing", Means: "Calls that need it fail.",
				Remedy: []string{"wirefence doctor, of the release that migrated the database, which says how to make it"}}}, nil
		}
		return []Finding{{Grade: Note, Says: "not compared: the schema is another version's"}}, nil
	}
	if err != nil {
		return nil, schemaRight(err)
	}
	var found []Finding
	for _, d := range drifts {
		f := Finding{Grade: Problem, Says: d.Object + ": " + d.Fault, Means: "Fences are checked by other rules than this binary's.", Remedy: d.Remedy}
		switch {
		case d.Harmless:
			f.Grade, f.Means = Warning, "It changes no verdict; Wirefence didn't grant or make it."
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
	return orFine(found, "functions, tables and rights are as this binary installs them"), nil
}

// onlyOfHistory says whether nothing but records of handoffs suffers.
func onlyOfHistory(d migrations.Drift) bool {
	return strings.Contains(d.Fault, "note_handoff") || strings.Contains(d.Fault, "note_first") ||
		d.Object == "wirefence.history" && strings.Contains(d.Fault, "missing")
}

// checkPrepared looks for what only a superuser can make.
func checkPrepared(ctx context.Context, in *Input) ([]Finding, error) {
	var steps []string
	err := in.onConnection(ctx, func(conn *pgx.Conn) (err error) {
		steps, err = migrations.Unprepared(ctx, conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, step := range steps {
		f := Finding{Grade: Problem, Says: "not done: " + step, Remedy: []string{step}}
		switch {
		case strings.HasPrefix(step, "GRANT pg_signal_backend"):
			f.Says = "wirefence_owner may not end backends"
			f.Means = "A stuck transaction of a former holder holds up the next one for ever, instead of for preempt_after."
		case strings.HasPrefix(step, "GRANT pg_read_all_stats"):
			f.Grade, f.Says = Warning, "wirefence_owner may not see which backends are idle"
			f.Means = "A takeover waits for the idle session of a frozen proxy for preempt_after, instead of for less than half a second."
		case strings.HasPrefix(step, "CREATE ROLE "):
			f.Says = "the role " + strings.Fields(step)[2] + " doesn't exist"
			f.Means, f.Remedy = "Nobody can use the rights that are granted to it.", []string{"wirefence migrate"}
		case strings.HasPrefix(step, "CREATE SCHEMA"):
			continue // the version's check tells of it
		default:
			f.Means = "Another role can replace the functions that check fences."
		}
		found = append(found, f)
	}
	return orFine(found, "the roles are there, and wirefence_owner may end backends"), nil
}

//go:embed sql/issuer.sql
var issuerSQL string

// issuer is the connecting role.
type issuer struct {
	Role      string
	Superuser bool
	Issuer    bool
	Owner     bool
}

func checkIssuer(ctx context.Context, in *Input) ([]Finding, error) {
	me, err := row[issuer](ctx, in, issuerSQL)
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
	return fine("%s has wirefence_issuer, and is neither a superuser nor wirefence_owner", me.Role), nil
}

//go:embed sql/members.sql
var membersSQL string

// member is a role that can log in and has another's rights.
type member struct {
	Of, Role string
}

// membersOf lists who can act as a role, superusers left out.
func membersOf(ctx context.Context, in *Input, role string) ([]string, error) {
	all, err := rows[member](ctx, in, membersSQL, role)
	var names []string
	for _, m := range all {
		names = append(names, m.Role)
	}
	slices.Sort(names)
	return names, err
}

// checkOwner lists who can change tokens and verdicts at will.
func checkOwner(ctx context.Context, in *Input) ([]Finding, error) {
	names, err := membersOf(ctx, in, "wirefence_owner")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return fine("nobody but superusers can act as wirefence_owner"), nil
	}
	return []Finding{{
		Grade: Note, Says: "can act as wirefence_owner: " + strings.Join(names, ", "),
		Means:  "They can change tokens and functions. The migrating role must be among them, and no application's role.",
		Remedy: []string{"REVOKE wirefence_owner FROM " + pgx.Identifier{names[0]}.Sanitize() + ", unless it migrates"},
	}}, nil
}

// checkSuperusers lists whom nothing binds.
func checkSuperusers(ctx context.Context, in *Input) ([]Finding, error) {
	names, err := rows[struct{ Role string }](ctx, in, "SELECT rolname::text FROM pg_roles WHERE rolsuper AND rolcanlogin ORDER BY 1")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, n := range names {
		all = append(all, n.Role)
	}
	return fine("superusers, who are checked like others but may switch guards off: %s", strings.Join(all, ", ")), nil
}
