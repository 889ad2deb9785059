package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/lockclient/finding"
)

// FurtherDatabase is one besides Input.Database in which grants are sealed.
type FurtherDatabase struct {
	// Name has its hosts and the database.
	Name string
	// Pool is of the issuer's role there, made by OpenPool.
	Pool *pgxpool.Pool
}

// furtherChecks examine the other databases in which grants are sealed, if any are named.
func (in *Input) furtherChecks() []Check {
	if len(in.Further) == 0 {
		return nil
	}
	return []Check{{"database.further", []string{schemaVersion}, checkFurther}}
}

//go:embed sql/which_database.sql
var whichDatabaseSQL string

// checkFurther makes all checks of the database in each of the others. It reports problems
// and warnings, and two names that lead to one database.
func checkFurther(ctx context.Context, in *Input) (found []Finding, err error) {
	deadline, _ := ctx.Deadline()
	each, known := make([][]Finding, len(in.Further)), make([]string, len(in.Further))
	var all sync.WaitGroup
	for i, d := range in.Further {
		all.Go(func() {
			other := &Input{Database: d.Pool, Source: in.Source, Sources: in.Sources, Lease: in.Lease, TTL: in.TTL}
			each[i] = of(d.Name, run(ctx, other, other.ownChecks(), time.Until(deadline)))
			known[i], _ = other.which(ctx)
		})
	}
	all.Wait()
	names := map[string]string{}
	if own, err := in.which(ctx); err == nil {
		names[own] = "the database of WIREFENCE_DATABASE_URL"
	}
	for i, d := range in.Further {
		found = append(found, each[i]...)
		if other, twice := names[known[i]]; twice && known[i] != "" {
			found = append(found, Finding{Grade: Note, Says: d.Name + " is named twice: it is " + other,
				Means: "A grant is sealed there once. If another database was meant, nothing is sealed in that one.", Remedy: []string{"name each database once in WIREFENCE_SEAL_URLS"}})
		} else {
			names[known[i]] = d.Name
		}
	}
	return found, nil
}

// which identifies the database among all.
func (in *Input) which(ctx context.Context) (string, error) {
	one, err := row[struct{ Which string }](ctx, in, whichDatabaseSQL)
	return one.Which, err
}

// of returns the warnings and problems of a database, with its name.
func of(name string, results []Result) (found []Finding) {
	for _, r := range results {
		for _, f := range r.Findings {
			if f.Grade > Note {
				f.Says = fmt.Sprintf("%s: %s: %s", name, r.Check, f.Says)
				found = append(found, f)
			}
		}
	}
	return finding.OrFine(found, "%s: none of %d checks finds a problem", name, len(results))
}
